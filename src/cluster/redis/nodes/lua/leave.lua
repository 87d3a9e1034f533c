-- Removes an incarnation that leaves the cluster. From then on the incarnation counts as dead, and
-- sessions that it left in the store count as offline. `heartbeat.lua` describes the keys.
--
-- ARGV   incarnation  name of the incarnation
-- Reply  1, or 0 if the incarnation was not live
local beats, nodes, settings = KEYS[1], KEYS[2], KEYS[3]
local incarnation = ARGV[1]
if redis.call('ZREM', beats, incarnation) == 0 then return 0 end
redis.call('HDEL', nodes, incarnation)
redis.call('HDEL', settings, incarnation)
return 1
