-- Reads the position at which a new reader of channels starts: after everything that has been
-- published so far. Read-only.
--
-- KEYS   1  counter of message ids
--        then the head of each channel
-- Reply  newest message id of the counter, then for each channel
--          1  newest publication number
--          2  newest seq
--          3  id of the newest message in the log, 0 if the log is empty
--          4  list of `stream_tail` of the active streams
local starts = { tonumber(redis.call('GET', KEYS[1]) or '0') }
for at = 2, #KEYS do
  local bucket, key = string.match(KEYS[at], '^([^{]*{c%d+}:)head:(.*)$')
  local head = redis.call('HMGET', KEYS[at], 'pub', 'seq')
  local newest = head[2] and redis.call('XREVRANGE', bucket .. 'log:' .. key, '+', '-', 'COUNT', 1)[1]
  local streams = {}
  for _, client_msg_no in ipairs(redis.call('ZRANGE', bucket .. 'openStreams:' .. key, 0, -1)) do
    streams[#streams + 1] = stream_tail(KEYS[at], client_msg_no) or nil
  end
  starts[at] = { tonumber(head[1] or '0'), tonumber(head[2] or '0'), newest and log_entry(newest).id or 0, streams }
end
return starts
