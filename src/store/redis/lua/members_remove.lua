-- Removes one kind of membership from all listed or from none.
-- KEYS  info, the kind's set, the other kind's, join, pos, own, head
-- ARGV  JSON list of uids, each once; the topic and the id of a group, else ''
-- Reply { 0: no such channel | 1: disbanded | 2: some are no members | 3: removed, positions (from 1): of those | of who is no member of any kind }
local bits = record_bits(KEYS[1])
if bits == NO_RECORD then return { 0, {} } end
if bit.band(bits, DISBAND) ~= 0 then return { 1, {} } end
local uids = cjson.decode(ARGV[1])
local strangers = positions(uids, 0, function(piece) return redis.call('SMISMEMBER', KEYS[2], unpack(piece)) end)
if #strangers > 0 then return { 2, strangers } end
in_pieces(uids, function(piece) redis.call('SREM', KEYS[2], unpack(piece)) end)
local gone = positions(uids, 0, function(piece) return redis.call('SMISMEMBER', KEYS[3], unpack(piece)) end)
local names = {}
for _, at in ipairs(gone) do names[#names + 1] = uids[at] end
left({ join = KEYS[4], pos = KEYS[5], own = KEYS[6] }, names)
if #names > 0 then tell_removal({ head = KEYS[7], topic = ARGV[2], group = ARGV[3] }, names) end
return { 3, gone }
