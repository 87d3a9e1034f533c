-- Removes one kind of membership from all listed or from none; a group's nodes are notified of
-- those that are members of no kind any more.
-- KEYS  as of members.lua
-- ARGV  topic and id of a group, else ''; JSON list of uids, each once
-- Reply { 0: no such channel | 1: disbanded | 2: some are no members | 3: removed, positions (from
--   1) of those that are no members }
local bits = record_bits(HEAD)
if bits == NO_RECORD then return { 0, {} } end
if bit.band(bits, DISBAND) ~= 0 then return { 1, {} } end
local uids = cjson.decode(ARGV[3])
local strangers = positions(uids, 0, function(piece) return redis.call('SMISMEMBER', KIND, unpack(piece)) end)
if #strangers > 0 then return { 2, strangers } end
in_pieces(uids, function(piece) redis.call('SREM', KIND, unpack(piece)) end)
local removed = TOPIC ~= '' and in_neither(uids) or {}
if #removed > 0 then
  left(removed)
  publish_removal(removed)
end
return { 3, {} }
