-- Puts a device class of a user in place of the one before.
-- KEYS  dev
-- ARGV  flag, the device
-- Reply the one before; nil: none
local before = redis.call('HGET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return before
