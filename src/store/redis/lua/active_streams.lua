-- Finds the active streams of channels. Read-only.
--
-- KEYS   key prefix of each bucket that contains some of the channels
-- ARGV   for each bucket, the number of its channels and the channel key of each
-- Reply  for each channel with active streams, its position (from 1) among the channel keys in
--        ARGV, and the list of the streams' clientMsgNos
local reply, before, at = {}, 0, 1
for _, bucket in ipairs(KEYS) do
  local count = tonumber(ARGV[at])
  -- Most buckets have no active stream. This check saves one call for each of their channels.
  if redis.call('EXISTS', bucket .. 'activeStreams') == 1 then
    for n = 1, count do
      local names = redis.call('ZRANGE', bucket .. 'openStreams:' .. ARGV[at + n], 0, -1)
      if names[1] then reply[#reply + 1] = { before + n, names } end
    end
  end
  before, at = before + count, at + count + 1
end
return reply
