-- Reads the position at which a new reader of channels starts: after everything that has been
-- published so far. Read-only.
--
-- KEYS   counter  message id counter
--        then the head of each channel
-- Reply  newest message id of the counter, then for each channel
--          1  newest publication number
--          2  newest seq
--          3  id of the newest message in the log, 0 if the log is empty
--          4  list of `stream_tail` of the active streams
local counter = KEYS[1]
local FIRST_HEAD = 2
local starts = { tonumber(redis.call('GET', counter) or '0') }
for at = FIRST_HEAD, #KEYS do
  local head = KEYS[at]
  local bucket, key = string.match(head, '^([^{]*{c%d+}:)head:(.*)$')
  local fields = redis.call('HMGET', head, 'pub', 'seq')
  local newest = fields[2] and redis.call('XREVRANGE', bucket .. 'log:' .. key, '+', '-', 'COUNT', 1)[1]
  local streams = {}
  for _, client_msg_no in ipairs(redis.call('ZRANGE', bucket .. 'openStreams:' .. key, 0, -1)) do
    streams[#streams + 1] = stream_tail(head, client_msg_no) or nil
  end
  starts[at] = { tonumber(fields[1] or '0'), tonumber(fields[2] or '0'), newest and log_entry(newest).id or 0, streams }
end
return starts
