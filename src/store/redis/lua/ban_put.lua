-- Bans a user or ends the ban.
--
-- KEYS   1  sessions of the user
-- ARGV   1  1 to ban the user, 0 to end the ban
--        2  time in ms for which logged-out devices are kept
local user = user_of(KEYS[1], '')
if ARGV[1] == '1' then
  redis.call('HSET', user.devices, 'ban', '1')
else
  redis.call('HDEL', user.devices, 'ban')
end
expire_devices(user, ARGV[2])
