-- Acquires, renews or releases the migration lease. Only one process holds the lease at a time.
--
-- ARGV  token  of the process
--       ttl    time until the lease expires (ms; 0: release it)
--       mode   'take': acquire or renew it; 'keep': only renew it
-- Reply 1  the process holds the lease, or has released it
--       0  another process holds the lease, or 'keep' found that it has expired
local lease = KEYS[1]
local token, ttl, mode = ARGV[1], ARGV[2], ARGV[3]
local holder = redis.call('GET', lease)
if holder and holder ~= token then return 0 end
if ttl == '0' then
  redis.call('DEL', lease)
elseif not holder and mode == 'keep' then
  return 0
else
  redis.call('SET', lease, token, 'PX', ttl)
end
return 1
