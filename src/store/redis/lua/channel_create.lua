-- Creates a channel with its permanent members unless the channel already exists.
--
-- KEYS   see `members.lua`, then see `events.lua`
-- ARGV   1  topic   of a group, else ''
--        2  id      of a group, else ''
--        3  uids    JSON list without duplicates
--        4  bits    bits of the record
--        then see `events.lua`
-- Reply  1 if the channel was created, 0 if it exists
if redis.call('HEXISTS', HEAD, 'info') == 1 then return 0 end
local has_feed, uids = is_feed_on(), cjson.decode(ARGV[3])
write_record(HEAD, tonumber(ARGV[4]))
add_members(uids)
if has_feed then
  emit_channel(NO_RECORD, tonumber(ARGV[4]))
  emit_members(CHANNEL_MEMBERS_ADDED, uids, '0')
end
return 1
