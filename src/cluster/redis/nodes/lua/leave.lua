-- Removes an incarnation that leaves the cluster. It counts as dead at once, and so do the sessions
-- it may have left in the store.
--
-- KEYS   beats, nodes  see heartbeat.lua
-- ARGV   incarnation
-- Reply  1, or 0 if the incarnation was not live
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
