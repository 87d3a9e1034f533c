-- Creates a channel with its permanent members, unless the channel already exists.
--
-- KEYS   see `members.lua`
-- ARGV   1  topic   of a group, else ''
--        2  id      of a group, else ''
--        3  uids    JSON list without duplicates
--        4  bits    bits of the record
-- Reply  1 if the channel was created, 0 if it exists
if redis.call('HEXISTS', HEAD, 'info') == 1 then return 0 end
write_record(HEAD, tonumber(ARGV[4]))
add_members(cjson.decode(ARGV[3]))
return 1
