-- Replaces a user's device. A new device without a token is logged out. The script then records the
-- time of the logout, and the end of all sessions of the device, including sessions without an
-- entry.
--
-- ARGV   flag, level   of the device
--        token_hash    '' if the device has no token
--        kept_ms       time for which logged-out devices are kept
--        uid
--        bucket        bucket of the user's events, see `user_feed.lua`
--        event_ids     message id counter
--        is_announced  1 if the user is listed in `online` of the bucket, else 0
-- Reply  the old device, nil if there was none; or 'announce' or 'full', see `outbox_demand`
local sessions = KEYS[1]
local flag, level, token_hash, kept_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local uid, bucket, event_ids, is_announced = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local user = user_of(sessions, uid, bucket)
if token_hash == '' then write_when_full(user.sessions) end
local demand = outbox_demand(user, is_announced)
if demand then return demand end
local has_feed = has_user_feed(user)
local old_device = redis.call('HGET', user.devices, flag)
local old = read_device(user, flag)
local device = { level = tonumber(level), hash = token_hash, revoked = old and old.revoked or 0 }
if device.hash == '' then device.revoked = math.floor(NOW / 1000000) end
write_device(user, flag, device)
expire_devices(user, kept_ms)
if device.hash == '' then end_device(user, flag, 'logged_out') end
local is_changed = device.hash ~= (old and old.hash or '') or old and old.level ~= device.level
if has_feed and is_changed then
  emit_user(user, event_ids, 'events', USER_TOKEN_CHANGED, '{"device_flag":' .. flag .. ',"device_level":' .. level .. '}')
end
return old_device
