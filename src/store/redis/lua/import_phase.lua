-- Changes the phase of the import if it is one of the listed phases.
--
-- KEYS   1     import
-- ARGV   1     new phase
--        2...  phases from which it may change
-- Reply  the phase before the call
local phase = redis.call('HGET', KEYS[1], 'phase') or 'none'
for at = 2, #ARGV do
  if ARGV[at] == phase then redis.call('HSET', KEYS[1], 'phase', ARGV[1]) end
end
return phase
