-- Removes one kind of membership from all listed or from none; a group's nodes are notified of those that are members of no kind any more.
-- KEYS  head, the kind's set, the other kind's, join, pos
-- ARGV  topic and id of a group, else ''; JSON list of uids, each once
-- Reply { 0: no such channel | 1: disbanded | 2: some are no members | 3: removed, positions (from 1) of those that are no members }
local bits = record_bits(KEYS[1])
if bits == NO_RECORD then return { 0, {} } end
if bit.band(bits, DISBAND) ~= 0 then return { 1, {} } end
local uids = cjson.decode(ARGV[3])
local strangers = positions(uids, 0, function(piece) return redis.call('SMISMEMBER', KEYS[2], unpack(piece)) end)
if #strangers > 0 then return { 2, strangers } end
in_pieces(uids, function(piece) redis.call('SREM', KEYS[2], unpack(piece)) end)
local k = { head = KEYS[1], join = KEYS[4], pos = KEYS[5], topic = ARGV[1], group = ARGV[2] }
local removed = k.topic ~= '' and in_neither(KEYS[2], KEYS[3], uids) or {}
if #removed > 0 then
  left(k, removed)
  publish_removal(k, removed)
end
return { 3, {} }
