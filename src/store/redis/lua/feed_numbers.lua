-- Reads the number of the newest event in the feed of each partition. Read-only.
--
-- KEYS   feed of each partition
-- Reply  number of the newest event of each partition, 0 if it has none

local numbers = {}
for at, feed in ipairs(KEYS) do
  local values = redis.call('HMGET', feed, 'number', 'stopped')
  numbers[at] = tonumber(values[1] or values[2] or 0)
end
return numbers
