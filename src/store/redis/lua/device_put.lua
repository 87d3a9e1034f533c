-- Replaces a user's device. A new device without a token is logged out: records the time of the
-- logout, and the end of all sessions of the device, including those without an entry.
--
-- KEYS   1  sessions of the user
-- ARGV   1  flag
--        2  level
--        3  hash of the token, '' if the device has none
--        4  time in ms for which logged-out devices are kept
--        5  uid
--        6  beginning of the names of the keys of the bucket of the user's events, or ''
--        7  counter of message ids
--        8  1 if the user is listed in `online` of the bucket, else 0
-- Reply  the old device, or nil; 'announce' or 'full', see `outbox_demand`
local user = user_of(KEYS[1], ARGV[5], ARGV[6])
local demand = outbox_demand(user, ARGV[8])
if demand then return demand end
local has_feed = has_user_feed(user)
local old_device = redis.call('HGET', user.devices, ARGV[1])
local old = read_device(user, ARGV[1])
local device = { level = tonumber(ARGV[2]), hash = ARGV[3], revoked = old and old.revoked or 0 }
if device.hash == '' then device.revoked = math.floor(NOW / 1000000) end
write_device(user, ARGV[1], device)
expire_devices(user, ARGV[4])
if device.hash == '' then end_device(user, ARGV[1], 'logged_out') end
local is_changed = device.hash ~= (old and old.hash or '') or old and old.level ~= device.level
if has_feed and is_changed then
  emit_user(user, ARGV[7], 'events', USER_TOKEN_CHANGED, '{"device_flag":' .. ARGV[1] .. ',"device_level":' .. ARGV[2] .. '}')
end
return old_device
