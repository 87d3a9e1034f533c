-- How many uids are in a channel. Reads only.
-- KEYS  permanent, temporary, denylist, allowlist
-- Reply { members of either kind, uids on the denylist, on the allowlist }
local permanent, temporary = redis.call('SCARD', KEYS[1]), redis.call('SCARD', KEYS[2])
local both = temporary == 0 and 0 or redis.call('SINTERCARD', 2, KEYS[1], KEYS[2])
return { permanent + temporary - both, redis.call('SCARD', KEYS[3]), redis.call('SCARD', KEYS[4]) }
