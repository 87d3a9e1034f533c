-- Changes fields of a migration's record. Changes nothing if another process may hold the lease, or
-- if Redis has lost the record, because the copied data is then lost too.
--
-- ARGV  token  of the process
--       then fields and values, alternating
-- Reply 1      changed
--       0      not changed
local record, lease = KEYS[1], KEYS[2]
local token = ARGV[1]
local FIRST_FIELD = 2
if redis.call('GET', lease) ~= token then return 0 end
if redis.call('HEXISTS', record, 'source') == 0 then return 0 end
redis.call('HSET', record, unpack(ARGV, FIRST_FIELD))
return 1
