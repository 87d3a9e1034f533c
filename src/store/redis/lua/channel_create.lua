-- Creates a channel with its permanent members, unless the id is taken.
-- KEYS  info, perm, temp, join, head, pos, own
-- ARGV  topic and id of a group, else ''; JSON list of uids, each once; fields and values of the record
-- Reply 1: created, 0: taken
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'v', RECORD_FORMAT, unpack(ARGV, 4))
local k = { kind = KEYS[2], other = KEYS[3], join = KEYS[4], head = KEYS[5], pos = KEYS[6], own = KEYS[7], topic = ARGV[1] }
admit(k, cjson.decode(ARGV[3]))
return 1
