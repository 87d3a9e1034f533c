-- Returns all incarnations that have sent a heartbeat and are not declared dead. Changes nothing.
-- `heartbeat.lua` describes the keys.
--
-- Reply  for each incarnation: its name, the description of its node, the time of its last
--        heartbeat and the milliseconds since then
local beats, nodes = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local peers = {}
local newest_beats = redis.call('ZRANGE', beats, 0, -1, 'WITHSCORES')
for at = 1, #newest_beats, 2 do
  local incarnation, beat = newest_beats[at], newest_beats[at + 1]
  local description = redis.call('HGET', nodes, incarnation)
  if description then peers[#peers + 1] = { incarnation, description, beat, int(now - tonumber(beat)) } end
end
return peers
