-- Replaces a user's device. If the new device has no token, records the end of all its sessions,
-- including those without an entry.
--
-- KEYS   1  sessions of the user
-- ARGV   1  flag
--        2  device, as `encodeDevice` of `users.ts` encodes it
--        3  1 if the device has no token, else 0
-- Reply  the old device, nil if there was none
local user = user_of(KEYS[1], '')
local old_device = redis.call('HGET', user.devices, ARGV[1])
redis.call('HSET', user.devices, ARGV[1], ARGV[2])
if ARGV[3] == '1' then end_device(user, ARGV[1], 'logged_out') end
return old_device
