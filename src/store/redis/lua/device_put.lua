-- Puts a device class of a user in place of the one before. A device that logs out ends what its
-- sessions were, also those that are not in.
-- KEYS  the user's sessions
-- ARGV  flag, the device, 1: it has no token, else 0
-- Reply the one before; nil: none
local user = user_of(KEYS[1], '')
local before = redis.call('HGET', user.devices, ARGV[1])
redis.call('HSET', user.devices, ARGV[1], ARGV[2])
if ARGV[3] == '1' then end_device(user, ARGV[1], 'logged_out') end
return before
