-- Creates the record of a move, unless a node lives. A node that starts later reads the record
-- after its first heartbeat. Watched nodes without a new heartbeat are declared dead, as a
-- heartbeat of another node would do.
-- KEYS  the record; beats and nodes (see heartbeat.lua); the lease
-- ARGV  the process's token; the number of fields and values of the record, these; then the
--   incarnation and last heartbeat of each watched node
-- Reply nil: created; else the incarnation of a node that lives; '': the lease was lost
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
