-- Removes one kind of membership from all listed uids, or changes nothing if one of the uids does
-- not have that membership. For a group, removes the data of users who are no longer members, and
-- publishes their uids to the nodes that follow the group.
--
-- KEYS   see `members.lua`, then see `events.lua`
-- ARGV   see `members.lua`, then
--        uids_json     JSON list without duplicates
--        is_temporary  1 for temporary members, else 0
--        then see `events.lua`
-- Reply  1  0: the channel does not exist
--           1: the channel is disbanded
--           2: some uids are not members of this kind
--           3: removed
--        2  positions (from 1) of the uids that are not members of this kind, empty unless the
--           first value is 2
local uids_json, is_temporary = ARGV[3], ARGV[4]
local bits = record_bits(HEAD)
if bits == NO_RECORD then return { 0, {} } end
if bit.band(bits, DISBAND) ~= 0 then return { 1, {} } end
local uids = cjson.decode(uids_json)
local missing = positions(uids, 0, function(piece) return redis.call('SMISMEMBER', KIND, unpack(piece)) end)
if #missing > 0 then return { 2, missing } end
local has_feed = is_feed_on()
in_pieces(uids, function(piece) redis.call('SREM', KIND, unpack(piece)) end)
local removed = TOPIC ~= '' and non_members(uids) or {}
if #removed > 0 then
  forget_members(removed)
  publish_removal(removed)
end
if has_feed then emit_members(CHANNEL_MEMBERS_REMOVED, uids, is_temporary) end
return { 3, {} }
