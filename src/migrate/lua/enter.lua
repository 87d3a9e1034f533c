-- Creates the record of a migration, unless a node has sent a heartbeat since the caller began to
-- watch the nodes. Nodes that have sent no heartbeat since then are dead and are removed, in the
-- same way as in heartbeat.lua. A node that starts later finds the record after its first
-- heartbeat.
--
-- KEYS  1  the record of the migration
--       2  beats  (see heartbeat.lua)
--       3  nodes  (see heartbeat.lua)
--       4  the lease
-- ARGV  1      token of the process that holds the lease
--       2      number of the following fields and values of the record
--       3...   fields and values of the record, alternating
--       ...    incarnation and last heartbeat of each watched node, alternating
-- Reply nil         the record was created
--       ''          the lease was lost
--       a string    incarnation of a live node: the record was not created
if redis.call('GET', KEYS[4]) ~= ARGV[1] then return '' end
local fields = tonumber(ARGV[2])
local watched = {}
for at = fields + 3, #ARGV, 2 do watched[ARGV[at]] = ARGV[at + 1] end
local beats = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for at = 1, #beats, 2 do
  if watched[beats[at]] ~= beats[at + 1] then return beats[at] end
end
for at = 1, #beats, 2 do
  redis.call('ZREM', KEYS[2], beats[at])
  redis.call('HDEL', KEYS[3], beats[at])
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 3, 2 + fields))
return nil
