-- Reads the position of the newest event in each partition. Read-only.
--
-- KEYS   feed of each partition
-- Reply  number and id of the newest event of each partition, 0 and 0 if it never had an event

local positions = {}
for _, feed in ipairs(KEYS) do
  local values = redis.call('HMGET', feed, 'number', 'stopped', 'id')
  positions[#positions + 1] = tonumber(values[1] or values[2] or 0)
  positions[#positions + 1] = tonumber(values[3] or 0)
end
return positions
