-- Finds the channels that have an active stream. Read-only.
--
-- KEYS   beginning of the key names of each bucket that holds some of the channels
-- ARGV   for each bucket, the number of its channels and the channel key of each
-- Reply  positions (from 1) of these channels among the channel keys in ARGV
local positions, before, at = {}, 0, 1
for _, bucket in ipairs(KEYS) do
  local count = tonumber(ARGV[at])
  -- Most buckets have no active stream. This check saves one call for each of their channels.
  if redis.call('EXISTS', bucket .. 'activeStreams') == 1 then
    for n = 1, count do
      if redis.call('EXISTS', bucket .. 'activeStream:' .. ARGV[at + n]) == 1 then positions[#positions + 1] = before + n end
    end
  end
  before, at = before + count, at + count + 1
end
return positions
