-- Ends a stream if it still has had no event for too long. Of one that ended without its users being told, its end is told again.
-- KEYS: head, activeStreams (the bucket's); where the users of a personal channel are in reach, their `streams`.
-- ARGV: 1 channel key, 2 clientMsgNo, 3 now, 4 how long retries are known (ms), 5 Unix ms since which it must have been silent, 6 … topics.
-- Reply: see `stream_steps.lua`; the verdict is `done` where it was ended now, else `missing`.
local c = { head = KEYS[1], channel = ARGV[1], now = tonumber(ARGV[3]), uids = { unpack(KEYS, 3) }, tells = 6 }
local name = ARGV[1] .. '\n' .. ARGV[2]
local last = redis.call('ZSCORE', KEYS[2], name)
if not last or tonumber(last) >= tonumber(ARGV[5]) then return step_reply(c, 'missing') end
local s = load_stream(c, ARGV[2])
if s and s.state == STREAM_ACTIVE then
  end_stream(c, s, { state = STREAM_INTERRUPTED, stopped = false, ids_ms = tonumber(ARGV[4]) })
  return step_reply(c, 'done', s.state)
end
if s then tell_again(c, s) end
if not c.frames then redis.call('ZREM', KEYS[2], name) end
return step_reply(c, 'missing', s and s.state)
