-- Returns all incarnations that have sent a heartbeat and are not declared dead. Changes nothing.
--
-- KEYS   beats, nodes  see heartbeat.lua
-- Reply  for each incarnation: its name, the description of its node, the time of its last
--        heartbeat and the milliseconds since then
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local peers = {}
local beats = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for at = 1, #beats, 2 do
  local description = redis.call('HGET', KEYS[2], beats[at])
  if description then
    peers[#peers + 1] = { beats[at], description, beats[at + 1], int(now - tonumber(beats[at + 1])) }
  end
end
return peers
