-- Adds entries of a move to a stream, each once however often the step is repeated. Nobody else writes the stream meanwhile.
-- KEYS  the stream
-- ARGV  seq of the entry that is to be there before the first one (0: none need be), for how long the stream is to be kept at least (ms, 0: for ever),
--       then of each entry its seq, the number of its fields and values, and these; seqs rise
-- Reply number of entries that were added; -1: the one before is missing, so nothing was
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local last = newest and tonumber(string.match(newest[1], '^%d+')) or 0
if last < tonumber(ARGV[1]) then return -1 end
local added, at = 0, 3
while at < #ARGV do
  local seq, count = ARGV[at], tonumber(ARGV[at + 1])
  if tonumber(seq) > last then
    redis.call('XADD', KEYS[1], seq .. '-0', unpack(ARGV, at + 2, at + 1 + count))
    added = added + 1
  end
  at = at + 2 + count
end
local keep = tonumber(ARGV[2])
if keep > 0 and redis.call('PTTL', KEYS[1]) < keep then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return added
