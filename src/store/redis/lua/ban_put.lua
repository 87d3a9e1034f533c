-- Bans a user or lifts the ban.
--
-- ARGV   is_ban   1 to ban the user, 0 to lift the ban
--        kept_ms  time for which logged-out devices are kept
local sessions = KEYS[1]
local is_ban, kept_ms = ARGV[1], ARGV[2]
local user = user_of(sessions, '')
if is_ban == '1' then
  redis.call('HSET', user.devices, 'ban', '1')
else
  redis.call('HDEL', user.devices, 'ban')
end
expire_devices(user, kept_ms)
