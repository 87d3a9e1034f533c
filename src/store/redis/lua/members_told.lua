-- Takes who was told off a list that is left of replaced ones; an empty one is forgotten. Harmless to repeat.
-- KEYS  olds, the list
-- ARGV  its name among `olds`, uids
-- Reply 0
if #ARGV > 1 then redis.call('SREM', KEYS[2], unpack(ARGV, 2)) end
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('SREM', KEYS[1], ARGV[1]) end
return 0
