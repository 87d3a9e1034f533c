-- A viewer's wish: ends an active stream, and its producer hears that.
-- KEYS: head; where the users of a personal channel are in reach, their `streams`.
-- ARGV: 1 channel key, 2 clientMsgNo, 3 now, 4 how long retries are known (ms), 5 … topics. Reply: see `stream_steps.lua`.
local c = { head = KEYS[1], channel = ARGV[1], now = tonumber(ARGV[3]), uids = { unpack(KEYS, 2) }, tells = 5 }
local s = load_stream(c, ARGV[2])
if not s then return step_reply(c, 'missing') end
if s.state == STREAM_ACTIVE then
  end_stream(c, s, { state = STREAM_CANCELLED, stopped = true, ids_ms = tonumber(ARGV[4]) })
else
  tell_again(c, s)
end
return step_reply(c, 'done', s.state)
