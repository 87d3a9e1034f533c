-- Replaces the list of one kind of members. Sets are compared by Redis itself: only what differs is looked at here.
-- KEYS  info, the kind's set, the other kind's, join, head, pos, own, a set for this step alone
-- ARGV  1 of a group else 0; JSON list of uids, each once
-- Reply { who is a member now and was none, who was and is none }; nil: no such channel, or disbanded
local kind, other, fresh = KEYS[2], KEYS[3], KEYS[8]
if not is_open(KEYS[1]) then return false end
redis.call('DEL', fresh)
local uids = cjson.decode(ARGV[2])
in_pieces(uids, function(piece) redis.call('SADD', fresh, unpack(piece)) end)
local added = redis.call('SDIFF', fresh, kind, other)
local gone = redis.call('SDIFF', kind, fresh, other)
redis.call('UNLINK', kind)
if #uids > 0 then redis.call('RENAME', fresh, kind) end
local k = { join = KEYS[4], head = KEYS[5], pos = KEYS[6], own = KEYS[7] }
if ARGV[1] == '1' then joined(k, added) end
left(k, gone)
return { added, gone }
