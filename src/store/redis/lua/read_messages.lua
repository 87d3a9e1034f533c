-- Reads messages with their streams. Skips messages that are no longer shown. Because of its
-- limits, one call delays other calls by at most about a millisecond. Read-only.
--
-- ARGV   from             first seq
--        to               last seq
--        limit            maximum number of messages
--        max_bytes        maximum bytes of content
--        is_reverse       1 if the newest message comes first, else 0
--        now              Unix ms
--        retention        ms, 0 means no limit
--        is_size_ignored  1 to return the first message even if it exceeds `max_bytes`, else 0
-- Reply  1  newest seq of the channel
--        2  1 if the range has more messages than the limits in ARGV allow, else 0
--        3  seq at which the next call continues, 0 if the range is complete or the limits in ARGV
--           are reached
--        4  bytes of content
--        5  list of messages, for each
--             1  messageId
--             2  seq
--             3  record
--             4  `stream_snapshot` of its stream, nil if it has no stream
local head, log = KEYS[1], KEYS[2]
local from, to, limit, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local is_reverse, now, retention, is_size_ignored = ARGV[5] == '1', tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1'
-- Limits of one call: entries inspected, bytes of messages, entries read at a time.
local MAX_INSPECTED, MAX_CALL_BYTES, PAGE = 1000, 1048576, 32
local head_seq = tonumber(redis.call('HGET', head, 'seq') or '0')
local messages, bytes, sent, inspected = {}, 0, 0, 0

local function reply(more, next_seq)
  return { head_seq, more, next_seq, bytes, messages }
end

local function is_shown(entry)
  if entry.expires and now >= entry.expires then return false end
  return retention == 0 or now < entry_ms(entry) + retention
end

-- Returns the number of a message's bytes that count against the limits on content, and the number
-- of its bytes in the reply.
local function message_bytes(entry)
  local payload, counted, frames = payload_bytes(entry.record), 0, 0
  if entry.stream then counted, frames = stream_bytes(head, entry.stream) end
  return payload + counted, payload + frames
end

while true do
  local count = math.min(limit - #messages + 1, PAGE)
  local page
  if is_reverse then
    page = redis.call('XREVRANGE', log, to, from, 'COUNT', count)
  else
    page = redis.call('XRANGE', log, from, to, 'COUNT', count)
  end
  for _, raw_entry in ipairs(page) do
    local entry = log_entry(raw_entry)
    if is_shown(entry) then
      if #messages == limit then return reply(1, 0) end
      local size, reply_size = message_bytes(entry)
      if bytes + size > max_bytes and not is_size_ignored then return reply(1, 0) end
      if #messages > 0 and sent + reply_size > MAX_CALL_BYTES then return reply(0, entry.seq) end
      local stream = entry.stream and stream_snapshot(head, entry.stream)
      messages[#messages + 1] = { entry.id, entry.seq, entry.record, stream or false }
      bytes, sent = bytes + size, sent + reply_size
      is_size_ignored = false
    end
    inspected = inspected + 1
    if inspected == MAX_INSPECTED then return reply(0, is_reverse and entry.seq - 1 or entry.seq + 1) end
  end
  if #page < count then return reply(0, 0) end
  local last = page[#page][1]
  if is_reverse then to = '(' .. last else from = '(' .. last end
end
