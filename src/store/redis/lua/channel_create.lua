-- Creates a channel with its permanent members unless the channel already exists.
--
-- KEYS   see `members.lua`, then see `events.lua`
-- ARGV   see `members.lua`, then
--        uids_json    JSON list without duplicates
--        record_text  bits of the record
--        then see `events.lua`
-- Reply  1 if the channel was created, 0 if it exists
local uids_json, record_text = ARGV[3], ARGV[4]
if redis.call('HEXISTS', HEAD, 'info') == 1 then return 0 end
local has_feed, uids, bits = is_feed_on(), cjson.decode(uids_json), tonumber(record_text)
write_record(HEAD, bits)
add_members(uids)
if has_feed then
  emit_channel(NO_RECORD, bits)
  emit_members(CHANNEL_MEMBERS_ADDED, uids, '0')
end
return 1
