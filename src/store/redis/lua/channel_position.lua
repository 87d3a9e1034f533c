-- Reads the state of a channel and finds a reader's delivered messages (marks) that are not in the
-- channel. A fail-over may have lost such messages, and their seqs are or will be reused.
--
-- KEYS   head, log and openStreams of the channel
--        counter     message id counter
-- ARGV   mark_count  number of marks, then for each mark, newest first
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
--        6  list of `stream_snapshot` of the active streams and of the requested streams that
--           exist. Their frames take at most MAX_BYTES
--        7  list of `stream_tail` of the other active and requested streams that exist
local head, log, open_streams, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mark_count = tonumber(ARGV[1])
local FIRST_MARK = 2
-- Maximum number of bytes of stream frames in the reply.
local MAX_BYTES = 1048576

local fields = redis.call('HMGET', head, 'pub', 'seq')
local last_id = tonumber(redis.call('GET', counter) or '0')
local head_seq = tonumber(fields[2] or '0')

-- Returns true if the message is certainly not in the channel, false if it certainly is, and nil if
-- the entries of the log do not decide this.
local function is_lost(seq, id)
  if math.abs(seq) > head_seq or id > last_id then return true end
  local from = seq > 0 and seq or 1 - seq
  local raw_entry = redis.call('XRANGE', log, int(from), '+', 'COUNT', 1)[1]
  if not raw_entry then return nil end
  local entry = log_entry(raw_entry)
  if entry.seq == seq then return entry.id ~= id end
  if entry.id < id then return true end -- ids grow with seqs
  return nil
end

local first_stream, lost_id = FIRST_MARK + 2 * mark_count, 0
for at = FIRST_MARK, first_stream - 1, 2 do
  local seq, id = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local lost = is_lost(seq, id)
  if lost then lost_id = id end
  if lost == false then break end -- all earlier marks are in the channel too
end

local newest = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local streams, others, seen, bytes = {}, {}, {}, 0
local function add_stream(client_msg_no)
  if seen[client_msg_no] then return end
  seen[client_msg_no] = true
  local _, size = stream_bytes(head, client_msg_no)
  if bytes + size > MAX_BYTES then
    others[#others + 1] = stream_tail(head, client_msg_no) or nil
    return
  end
  local snapshot = stream_snapshot(head, client_msg_no)
  if snapshot then streams[#streams + 1], bytes = snapshot, bytes + size end
end
for _, client_msg_no in ipairs(redis.call('ZRANGE', open_streams, 0, -1)) do add_stream(client_msg_no) end
for at = first_stream, #ARGV do add_stream(ARGV[at]) end
return { tonumber(fields[1] or '0'), head_seq, last_id, newest and log_entry(newest).id or 0, lost_id, streams, others }
