-- Creates a migration's record, unless a node has sent a heartbeat since the caller began to watch
-- the nodes. Nodes without a heartbeat since then are dead and are removed, in the same way as in
-- heartbeat.lua. A node that starts later finds the record after its first heartbeat.
--
-- KEYS  record        HASH, see record.ts
--       beats, nodes  see heartbeat.lua
--       lease         see lease.lua
-- ARGV  token         of the process that holds the lease
--       value_count   number of the following fields and values of the record
--       then the fields and values of the record, alternating
--       then incarnation and last heartbeat of each watched node, alternating
-- Reply nil         the record was created
--       ''          the lease was lost
--       a string    incarnation of a live node: the record was not created
local record, beats, nodes, lease = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, value_count = ARGV[1], ARGV[2]
local FIRST_FIELD = 3
if redis.call('GET', lease) ~= token then return '' end
local last_value = FIRST_FIELD + tonumber(value_count) - 1
local watched = {}
for at = last_value + 1, #ARGV, 2 do watched[ARGV[at]] = ARGV[at + 1] end
local newest_beats = redis.call('ZRANGE', beats, 0, -1, 'WITHSCORES')
for at = 1, #newest_beats, 2 do
  local incarnation, beat = newest_beats[at], newest_beats[at + 1]
  if watched[incarnation] ~= beat then return incarnation end
end
for at = 1, #newest_beats, 2 do
  redis.call('ZREM', beats, newest_beats[at])
  redis.call('HDEL', nodes, newest_beats[at])
end
redis.call('DEL', record)
redis.call('HSET', record, unpack(ARGV, FIRST_FIELD, last_value))
return nil
