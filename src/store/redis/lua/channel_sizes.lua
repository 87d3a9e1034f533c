-- Counts the members of a channel and the uids on its lists. Read-only.
--
-- KEYS   1  permanent
--        2  temporary
--        3  denylist
--        4  allowlist
-- Reply  1  number of members of either kind
--        2  number of uids on the denylist
--        3  number of uids on the allowlist
local permanent, temporary = redis.call('SCARD', KEYS[1]), redis.call('SCARD', KEYS[2])
local both = temporary == 0 and 0 or redis.call('SINTERCARD', 2, KEYS[1], KEYS[2])
return { permanent + temporary - both, redis.call('SCARD', KEYS[3]), redis.call('SCARD', KEYS[4]) }
