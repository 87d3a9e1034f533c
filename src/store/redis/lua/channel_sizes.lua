-- Counts the members of a channel and the uids on its lists. Read-only.
--
-- Reply  1  number of members of either kind
--        2  number of uids on the denylist
--        3  number of uids on the allowlist
local permanent, temporary, denylist, allowlist = unpack(KEYS)
local permanent_size, temporary_size = redis.call('SCARD', permanent), redis.call('SCARD', temporary)
local both = temporary_size == 0 and 0 or redis.call('SINTERCARD', 2, permanent, temporary)
return { permanent_size + temporary_size - both, redis.call('SCARD', denylist), redis.call('SCARD', allowlist) }
