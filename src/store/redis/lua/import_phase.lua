-- Changes the import's phase if it is one of the listed phases.
--
-- ARGV   new phase, then the phases from which it may change
-- Reply  the phase before the call
local import = KEYS[1]
local new_phase = ARGV[1]
local FIRST_PHASE = 2
local phase = redis.call('HGET', import, 'phase') or 'none'
for at = FIRST_PHASE, #ARGV do
  if ARGV[at] == phase then redis.call('HSET', import, 'phase', new_phase) end
end
return phase
