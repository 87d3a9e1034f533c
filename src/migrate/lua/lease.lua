-- Takes, renews or gives back the lease of a move, which one process has at a time.
-- KEYS  the lease
-- ARGV  the process's token; for how long it has the lease from now on (ms; 0: it gives it back); "take", or "keep": only while it still has it
-- Reply 1: it has it (or had), 0: another one has it, or it ended
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
