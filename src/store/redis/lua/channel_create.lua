-- Creates a channel with its permanent members, unless the id is taken.
-- KEYS  as of members.lua
-- ARGV  topic and id of a group, else ''; JSON list of uids, each once; bits of the record
-- Reply 1: created, 0: taken
if redis.call('HEXISTS', HEAD, 'info') == 1 then return 0 end
write_record(HEAD, tonumber(ARGV[4]))
admit(cjson.decode(ARGV[3]))
return 1
