-- Starts a stream and stores its message in the channel. With `force` cancels the channel's active
-- stream first.
--
-- KEYS
--   1  head
--   2  log
--   3  counter of message ids
--   4  due of the bucket
--   5  dedupe of (uid, clientMsgNo)
--   6  activeStream
--   then, if the users of a personal channel are in reach, `streams` of each and `peers` of each
-- ARGV
--   1   channel key
--   2   clientMsgNo
--   3   now                       Unix ms
--   4   window for retries        ms
--   5   event id                  '' if there is none
--   6   data
--   7   bytes that the event counts
--   8   maximum bytes of a stream
--   9   tail of the event's record
--   10  beginning of the record of each event of the stream
--   11  bucket of the counter     -1 on a single server
--   12  retention                 ms, 0 means no limit
--   13  maximum messages          of the channel, 0 means no limit
--   14  record of the message
--   15  extra of its frame
--   16  uid
--   17  force                     1 to cancel another active stream, else 0
--   18  uid to add to the first `peers`, '' if there is none
--   19  uid to add to the second `peers`, '' if there is none
--   then the topics
-- Reply
--   see `stream_steps.lua`. The verdict may also be `too_large`.
local no, window = ARGV[2], tonumber(ARGV[4])
local now, retention, max_messages = tonumber(ARGV[3]), tonumber(ARGV[12]), tonumber(ARGV[13])
local reach = (#KEYS - 6) / 2
local c = { head = KEYS[1], channel = ARGV[1], now = now, indexes = { unpack(KEYS, 7, 6 + reach) }, topics = 20 }

-- Returns the extra with the id of the channel's message before this one, 0 if it is unknown
-- (`wire.ts`).
local function extra_behind(before) return '\148' .. string.sub(ARGV[15], 2) .. struct.pack('>Bd', 203, before) end

-- Publishes the stream's message again, because a caller that publishes to the users itself may
-- have failed to do so the first time.
local function publish_message_again(s)
  local _, _, pub = read_dedupe(KEYS[5], now, window)
  local entry = redis.call('XRANGE', KEYS[2], int(s.seq), int(s.seq))[1]
  if not pub or not entry then return end
  local found = log_entry(entry)
  publish_frame(c, message_frame(pub, found.id, s.seq, found.record, extra_behind(0)))
end

local s = load_stream(c, no)
if s and s.state == STREAM_ACTIVE then
  if not ARGV[c.topics] then publish_message_again(s) end
  publish_again(c, s)
  return step_reply(c, 'done', s.state)
end
if s then return late_reply(c, s, 's', '') end
if read_dedupe(KEYS[5], now, window) then return step_reply(c, 'taken') end
local active = redis.call('GET', KEYS[6])
local other = active and load_stream(c, active)
if other and ARGV[17] == '0' then return step_reply(c, 'running') end
local bytes = tonumber(ARGV[7])
if bytes > tonumber(ARGV[8]) then return step_reply(c, 'too_large') end
local ended
if other then
  end_stream(c, other, { state = STREAM_CANCELLED, stopped = false, ids_ms = window })
  ended = c.ended
end

local base = string.sub(KEYS[1], 1, -#ARGV[1] - 6) -- the part before `head:<key>`
local peers = false
if reach > 0 then peers = { ARGV[3], KEYS[7 + reach], ARGV[18] } end
if reach > 1 then peers[4], peers[5] = KEYS[8 + reach], ARGV[19] end
local channel = open_channel(base, ARGV[1], peers, retention > 0 or max_messages > 0, not ARGV[c.topics])
local id = reserve_ids(KEYS[3], tonumber(ARGV[11]), now, 1)
local place = int(channel[SEQ] + 1) .. '-' .. int(id)
place_message(channel, place, ARGV[14], ARGV[16], true, nil, no)
local extra = ARGV[15]
if channel[NEWEST] then extra, channel[NEWEST] = extra_behind(channel[NEWEST]), id end
close_channel(channel, now, retention, max_messages)
local seq, pub = channel[SEQ], channel[PUB]
write_dedupe(KEYS[5], window, ARGV[3], place, pub ~= seq and int(pub))
local keys = stream_keys(KEYS[1], no)
redis.call('HSET', keys.stream, 'h', ARGV[10], 'i', int(id), 'q', int(seq), 't', int(now), 'sd', ARGV[6])
redis.call('SET', KEYS[6], no)
for _, index in ipairs(c.indexes) do redis.call('SADD', index, ARGV[1]) end
publish_frame(c, message_frame(pub, id, seq, ARGV[14], extra))

s = { keys = keys, no = no, head = ARGV[10], seq = seq, next = 0, units = 0, bytes = 0, state = STREAM_ACTIVE, stopped = false }
add_event(c, s, { id = ARGV[5], kind = 's', data = ARGV[6], units = 0, bytes = bytes, state = STREAM_ACTIVE, tail = ARGV[9] })
c.ended = ended
return step_reply(c, 'done', s.state)
