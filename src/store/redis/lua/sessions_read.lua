-- Reads users' sessions. Read-only.
--
-- KEYS   sessions of each user
-- Reply  for each user, id and entry of each session
local users = {}
for at, key in ipairs(KEYS) do users[at] = redis.call('HGETALL', key) end
return users
