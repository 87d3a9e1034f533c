-- Makes one list of several that are left of replaced ones, so that calls which fail again and again leave no more than one.
-- KEYS  olds, the list, the others
-- ARGV  for how long it is kept at most (ms), the name of each list among `olds`
-- Reply 0
local lists, names = {}, {}
for at = 2, #KEYS do lists[#lists + 1], names[#names + 1] = KEYS[at], ARGV[at] end
redis.call('SUNIONSTORE', KEYS[2], unpack(lists))
redis.call('PEXPIRE', KEYS[2], ARGV[1])
redis.call('UNLINK', unpack(lists, 2))
redis.call('SREM', KEYS[1], unpack(names, 2))
redis.call('SADD', KEYS[1], names[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 0
