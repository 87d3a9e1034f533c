-- Adds members of one kind.
-- KEYS  info, the kind's set, the other kind's, join, head, pos, own
-- ARGV  1 of a group else 0; JSON list of uids, each once
-- Reply positions (from 1) of the uids that were no members of either kind; nil: no such channel, or disbanded
if not is_open(KEYS[1]) then return false end
local k = { kind = KEYS[2], before = KEYS[2], other = KEYS[3], join = KEYS[4], head = KEYS[5], pos = KEYS[6], own = KEYS[7] }
return admit(k, cjson.decode(ARGV[2]), ARGV[1] == '1')
