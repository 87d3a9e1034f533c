-- Reads where a new reader of channels starts: after everything that was published so far.
-- Read-only.
--
-- KEYS   1  counter of message ids
--        then the head of each channel
-- Reply  newest message id of the counter, then for each channel
--          1  newest publication number
--          2  newest seq
--          3  id of the newest message in the log, 0 if the log is empty
--          4  `stream_snapshot` of the active stream, or nil
local starts = { tonumber(redis.call('GET', KEYS[1]) or '0') }
for at = 2, #KEYS do
  local bucket, key = string.match(KEYS[at], '^([^{]*{c%d+}:)head:(.*)$')
  local head = redis.call('HMGET', KEYS[at], 'pub', 'seq')
  local newest = head[2] and redis.call('XREVRANGE', bucket .. 'log:' .. key, '+', '-', 'COUNT', 1)[1]
  local active = redis.call('GET', bucket .. 'activeStream:' .. key)
  starts[at] = {
    tonumber(head[1] or '0'), tonumber(head[2] or '0'), newest and log_entry(newest).id or 0,
    active and stream_snapshot(KEYS[at], active),
  }
end
return starts
