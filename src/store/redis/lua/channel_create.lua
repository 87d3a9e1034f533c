-- Creates a channel with its permanent members, unless the id is taken.
-- KEYS  head, perm, temp, join, pos
-- ARGV  topic and id of a group, else ''; JSON list of uids, each once; bits of the record
-- Reply 1: created, 0: taken
if redis.call('HEXISTS', KEYS[1], 'info') == 1 then return 0 end
write_record(KEYS[1], tonumber(ARGV[4]))
local k = { head = KEYS[1], kind = KEYS[2], other = KEYS[3], join = KEYS[4], pos = KEYS[5], topic = ARGV[1] }
admit(k, cjson.decode(ARGV[3]))
return 1
