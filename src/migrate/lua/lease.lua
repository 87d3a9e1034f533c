-- Takes, renews or releases the lease of a move, which one process holds at a time.
-- KEYS  the lease
-- ARGV  the process's token; how long the lease lasts from now on (ms; 0: release it); "take", or
--   "keep": only if the process still holds it
-- Reply 1: it holds it (or held), 0: another process does, or it expired
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
