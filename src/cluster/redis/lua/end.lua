-- Takes a session out and tells its node why, in one step: what was taken out and not told would be served for ever. Told even if it is not in, or is
-- not any more: the word of an earlier call may not have come.
-- KEYS: the user's sessions HASH sessionId → entry
-- ARGV: sessionId, the user's topic, the LOOSE frame (`wire.ts`) that tells
-- Reply: 1, or 0 when it was not in
local found = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('SPUBLISH', ARGV[2], ARGV[3])
return found
