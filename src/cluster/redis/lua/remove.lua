-- Removes a session that is over, and notifies those who watch the user if it was in.
-- KEYS: the user's sessions HASH sessionId → entry
-- ARGV: sessionId, the user's presence topic, the LOOSE frame of a presence event
-- Reply: 1, or 0 when it was not in
local found = redis.call('HDEL', KEYS[1], ARGV[1])
if found == 1 then redis.call('SPUBLISH', ARGV[2], ARGV[3]) end
return found
