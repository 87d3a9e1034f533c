-- Enters a move, unless a node lives that nobody has watched: one that begins to serve later reads the record after it gave its first sign of life.
-- Nodes that gave no sign while they were watched are declared dead, as a heartbeat of another node would.
-- KEYS  the record; beats and nodes (see heartbeat.lua)
-- ARGV  until when the process has the lease (Unix ms of this server's clock), the number of fields and values of the record, these, then of each node
--   that was watched its incarnation and last sign in turn
-- Reply nil: entered; else the incarnation of a node that lives; '': the lease ended
local time = redis.call('TIME')
if tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) >= tonumber(ARGV[1]) then return '' end
local fields = tonumber(ARGV[2])
local watched = {}
for at = fields + 3, #ARGV, 2 do watched[ARGV[at]] = ARGV[at + 1] end
local signs = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for at = 1, #signs, 2 do
  if watched[signs[at]] ~= signs[at + 1] then return signs[at] end
end
for at = 1, #signs, 2 do
  redis.call('ZREM', KEYS[2], signs[at])
  redis.call('HDEL', KEYS[3], signs[at])
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 3, 2 + fields))
return nil
