-- Reads the state of a channel and finds the delivered messages (marks) of a reader that are not in
-- the channel. A fail-over may have lost such messages, and their seqs are or will be reused.
--
-- KEYS   1  head
--        2  log
--        3  openStreams
--        4  counter of message ids
-- ARGV   1  number of marks, then for each mark, newest first
--             seq     of the message; for a message that is not stored, the negated newest seq of
--                     the channel at its publication
--             id      of the message
--        then the clientMsgNo of each stream to read
-- Reply  1  newest publication number
--        2  newest seq
--        3  newest message id of the counter
--        4  id of the newest message in the log, 0 if the log is empty
--        5  lowest id of a mark that is certainly not in the channel, 0 if no mark is known to be
--           lost
--        6  list of `stream_snapshot` of the active streams and of the requested streams that exist,
--           as far as they fit into the reply
--        7  list of `stream_tail` of the other such streams

-- Maximum bytes of the frames of streams in the reply.
local MAX_BYTES = 1048576

local head = redis.call('HMGET', KEYS[1], 'pub', 'seq')
local last_id = tonumber(redis.call('GET', KEYS[4]) or '0')
local head_seq = tonumber(head[2] or '0')

-- Returns true if the message is certainly not in the channel, false if it certainly is, and nil if
-- the log no longer shows whether it is.
local function is_lost(seq, id)
  if math.abs(seq) > head_seq or id > last_id then return true end
  local from = seq > 0 and seq or 1 - seq
  local raw_entry = redis.call('XRANGE', KEYS[2], int(from), '+', 'COUNT', 1)[1]
  if not raw_entry then return nil end
  local entry = log_entry(raw_entry)
  if entry.seq == seq then return entry.id ~= id end
  if entry.id < id then return true end -- ids grow with seqs
  return nil
end

local mark_count, lost_id = tonumber(ARGV[1]), 0
for at = 2, 2 * mark_count, 2 do
  local id = tonumber(ARGV[at + 1])
  local lost = is_lost(tonumber(ARGV[at]), id)
  if lost then lost_id = id end
  if lost == false then break end -- all earlier marks are in the channel too
end

local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local streams, others, seen, bytes = {}, {}, {}, 0
local function add_stream(client_msg_no)
  if seen[client_msg_no] then return end
  seen[client_msg_no] = true
  local _, size = stream_bytes(KEYS[1], client_msg_no)
  if bytes + size > MAX_BYTES then
    others[#others + 1] = stream_tail(KEYS[1], client_msg_no) or nil
    return
  end
  local snapshot = stream_snapshot(KEYS[1], client_msg_no)
  if snapshot then streams[#streams + 1], bytes = snapshot, bytes + size end
end
for _, client_msg_no in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do add_stream(client_msg_no) end
for at = 2 + 2 * mark_count, #ARGV do add_stream(ARGV[at]) end
return { tonumber(head[1] or '0'), head_seq, last_id, newest and log_entry(newest).id or 0, lost_id, streams, others }
