-- A life ends by its own will: it counts as dead at once, and what it may have left in the session directory is anybody's to sweep.
-- KEYS: beats, nodes, dead (see heartbeat.lua)
-- ARGV: life
-- Reply: 1, or 0 when it was not among the living
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], 0)
return 1
