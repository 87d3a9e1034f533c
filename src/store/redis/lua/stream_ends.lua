-- Finds the channels with a stream that ended at the time `since` or later. Read-only.
--
-- KEYS   key prefix of each bucket that contains some of the channels
-- ARGV   since  Unix ms: earlier ends are ignored
--        then, for each bucket, the number of its channels and the channel key of each
-- Reply  for each such channel
--        1  its position (from 1) among the channel keys in ARGV
--        2  Unix ms at which its last stream ended
local since = ARGV[1]
local FIRST_BUCKET = 2
local reply, before, at = {}, 0, FIRST_BUCKET
for _, bucket in ipairs(KEYS) do
  local count = tonumber(ARGV[at])
  for n = 1, count do
    local newest = redis.call('ZREVRANGEBYSCORE', bucket .. 'endedStreams:' .. ARGV[at + n], '+inf', since, 'WITHSCORES', 'LIMIT', 0, 1)
    if newest[2] then reply[#reply + 1], reply[#reply + 2] = before + n, newest[2] end
  end
  before, at = before + count, at + count + 1
end
return reply
