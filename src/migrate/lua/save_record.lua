-- Changes fields of the record of a migration. Changes nothing if another process may hold the
-- lease, or if Redis has lost the record, because the copied data is then lost too.
--
-- KEYS  1     the record of the migration
--       2     the lease
-- ARGV  1     token of the process
--       2...  fields and values, alternating
-- Reply 1     changed
--       0     not changed
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
if redis.call('HEXISTS', KEYS[1], 'source') == 0 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
