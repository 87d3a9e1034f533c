-- Acquires, renews or releases the lease of a migration, which one process holds at a time.
--
-- KEYS  1  the lease
-- ARGV  1  token of the process
--       2  time until the lease expires (ms; 0: release it)
--       3  'take': acquire or renew it; 'keep': only renew it
-- Reply 1  the process holds the lease, or has released it
--       0  another process holds the lease, or 'keep' found that it has expired
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
elseif not holder and ARGV[3] == 'keep' then
  return 0
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1
