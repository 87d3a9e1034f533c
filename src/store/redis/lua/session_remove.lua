-- Removes a session that its node no longer serves, and the record of its end. Notifies the user's
-- watchers if the session had an entry.
--
-- KEYS   1  sessions
-- ARGV   1  uid
--        2  sessionId
--        3  cause      reason for its end, '' if its connection was lost
local user = user_of(KEYS[1], ARGV[1])
redis.call('HDEL', user.ended, ARGV[2])
if redis.call('HDEL', user.sessions, ARGV[2]) == 1 then
  publish_presence(user, ARGV[3] ~= '' and ARGV[3] or nil)
end
