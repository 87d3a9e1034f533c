-- Removes an incarnation that leaves the cluster. From then on the incarnation counts as dead, and
-- sessions that it left in the store count as offline.
--
-- KEYS   beats, nodes, settings  see heartbeat.lua
-- ARGV   incarnation
-- Reply  1, or 0 if the incarnation was not live
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
return 1
