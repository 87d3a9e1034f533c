-- Takes out a session that is over, and notifies those who watch the user if it was in.
-- KEYS: the user's sessions
-- ARGV: uid, sessionId
-- Reply: nothing
local user = user_of(KEYS[1], ARGV[1])
redis.call('HDEL', user.ended, ARGV[2])
if redis.call('HDEL', user.sessions, ARGV[2]) == 1 then publish_presence(user) end
