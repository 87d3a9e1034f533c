-- Replaces the list of one kind of members at once, however long the one before was: that is set aside, and looked through later, piece by piece, for
-- who is no member any more (members_gone.lua).
-- KEYS  info, the kind's set, the other kind's, join, head, pos, own, olds, where the list before is set aside
-- ARGV  1 of a group else 0; JSON list of uids, each once; the name of that place among `olds`; for how long it is kept at most (ms); the topic and
--       the id of a group, else ''
-- Reply positions (from 1) of the uids that were no members of either kind; nil: no such channel, or disbanded
if not is_open(KEYS[1]) then return false end
local k = { kind = KEYS[2], other = KEYS[3], join = KEYS[4], head = KEYS[5], pos = KEYS[6], own = KEYS[7], before = KEYS[2] }
if redis.call('EXISTS', k.kind) == 1 then
  k.before = KEYS[9]
  redis.call('RENAME', k.kind, k.before)
  redis.call('PEXPIRE', k.before, ARGV[4])
  redis.call('SADD', KEYS[8], ARGV[3])
  redis.call('PEXPIRE', KEYS[8], ARGV[4])
end
local found = admit(k, cjson.decode(ARGV[2]), ARGV[1] == '1')
if k.before ~= k.kind then tell_removal({ head = k.head, topic = ARGV[5], group = ARGV[6] }, false) end
return found
