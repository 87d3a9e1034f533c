-- The position of a channel: its newest publication and message, its active stream and others asked
-- for, as far as they are there; and which of the messages that a reader has are not in the
-- channel: a fail-over lost them, and others have or get their numbers.
-- KEYS  1 head, 2 log, 3 activeStream, 4 messageIds
-- ARGV  1 how many messages the reader names; of each, the newest first, its seq, its id; of one
--   that is not kept minus the seq of the kept one before it;
--       then clientMsgNos of streams
-- Reply {pub, head seq, the last message id of the counter, the id of the newest message in the log
--   (0: none), the lowest id of a named message that is not
--       of the channel (0: all may be), {stream_snapshot, ...}}
local head = redis.call('HMGET', KEYS[1], 'pub', 'seq')
local last_id = tonumber(redis.call('GET', KEYS[4]) or '0')
local head_seq = tonumber(head[2] or '0')

-- true: it is lost; false: it is the channel's; nil: it may be, for what would show it has expired
-- or was trimmed.
local function is_lost(seq, id)
  if math.abs(seq) > head_seq or id > last_id then return true end
  local from = seq > 0 and seq or 1 - seq
  local raw = redis.call('XRANGE', KEYS[2], int(from), '+', 'COUNT', 1)[1]
  if not raw then return nil end
  local entry = log_entry(raw)
  if entry.seq == seq then return entry.id ~= id end
  if entry.id < id then return true end -- one that came after it has a greater id
  return nil
end

local named, lost_id = tonumber(ARGV[1]), 0
for at = 2, 2 * named, 2 do
  local id = tonumber(ARGV[at + 1])
  local lost = is_lost(tonumber(ARGV[at]), id)
  if lost then lost_id = id end
  if lost == false then break end -- and so are those before it
end

local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local streams, seen = {}, {}
local function show(no)
  if not no or seen[no] then return end
  seen[no] = true
  local snapshot = stream_snapshot(KEYS[1], no)
  if snapshot then streams[#streams + 1] = snapshot end
end
show(redis.call('GET', KEYS[3]))
for at = 2 + 2 * named, #ARGV do show(ARGV[at]) end
return { tonumber(head[1] or '0'), head_seq, last_id, newest and log_entry(newest).id or 0, lost_id, streams }
