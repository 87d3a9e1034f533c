-- An incarnation ends by its own will: it counts as dead at once, with what it may have left in the
-- session directory.
-- KEYS: beats, nodes (see heartbeat.lua)
-- ARGV: incarnation
-- Reply: 1, or 0 when it was not among the living
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
