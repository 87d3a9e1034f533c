-- Starts a stream and stores its message in the channel. With `force`, cancels the channel's active
-- stream first.
--
-- KEYS   1  head
--        2  log
--        3  counter of message ids
--        4  due of the bucket
--        5  dedupe of (uid, clientMsgNo)
--        6  activeStream
--        then, for a personal channel whose users are not in other slots, `streams` of each user,
--        and then `peers` of each user
-- ARGV   1   channel key
--        2   clientMsgNo
--        3   now                       Unix ms
--        4   window for retries        ms
--        5   event id                  '' if there is none
--        6   data
--        7   bytes that count against the maximum
--        8   maximum bytes of a stream
--        9   part of the event's record after the event id
--        10  beginning of the record of each event of the stream
--        11  bucket of the counter     -1 on a single server
--        12  retention                 ms, 0 means no limit
--        13  maximum messages          of the channel, 0 means no limit
--        14  record of the message
--        15  extra of the message's frame
--        16  uid of the sender
--        17  force                     1 to cancel another active stream, else 0
--        18  uid to add to the first `peers`, '' if there is none
--        19  uid to add to the second `peers`, '' if there is none
--        20  mark of the event         see `store/event-ids.ts`; '' if nothing is remembered
--        then the topics, none if the users are in other slots
-- Reply  see `stream_steps.lua`. The verdict may also be `too_large`.
local client_msg_no, window = ARGV[2], tonumber(ARGV[4])
local now, retention, max_messages = id_ms(tonumber(ARGV[11]), tonumber(ARGV[3])), tonumber(ARGV[12]), tonumber(ARGV[13])
local users = (#KEYS - 6) / 2
local call = { head = KEYS[1], channel = ARGV[1], now = now, indexes = { unpack(KEYS, 7, 6 + users) }, topics = 21 }

-- Returns the extra of the message's frame (`wire.ts`), completed with the id of the channel's
-- previous message, 0 if that id is unknown.
local function extra_after(id_before) return '\148' .. string.sub(ARGV[15], 2) .. struct.pack('>Bd', 203, id_before) end

-- Adds the stream's message to the reply once more. A caller that publishes to the users itself may
-- have failed to publish the message the first time.
local function publish_message_again(stream)
  local first_id, _, pub = read_dedupe(KEYS[5], now, window)
  local raw_entry = redis.call('XRANGE', KEYS[2], int(stream.seq), int(stream.seq))[1]
  if not pub or not raw_entry then return end
  local message = log_entry(raw_entry)
  if message.id ~= first_id then return end -- a WuKongIM client reused the clientMsgNo
  publish_frame(call, message_frame(pub, message.id, stream.seq, message.record, extra_after(0)))
end

local stream = load_stream(call, client_msg_no)
if stream and stream.state == STREAM_ACTIVE then
  if not ARGV[call.topics] then publish_message_again(stream) end
  publish_again(call, stream)
  return step_reply(call, 'done', stream.state)
end
if stream then return late_reply(call, stream, 's') end
if read_dedupe(KEYS[5], now, window) then return step_reply(call, 'taken') end
local active = redis.call('GET', KEYS[6])
local running = active and load_stream(call, active)
if running and ARGV[17] == '0' then return step_reply(call, 'running') end
local bytes = tonumber(ARGV[7])
if bytes > tonumber(ARGV[8]) then return step_reply(call, 'too_large') end
local ended_name
if running then
  end_stream(call, running, { state = STREAM_CANCELLED, stopped = false, ids_ms = window })
  ended_name = call.ended
end

local base = string.sub(KEYS[1], 1, -#ARGV[1] - 6) -- the part before `head:<key>`
local peers = false
if users > 0 then peers = { false, KEYS[7 + users], ARGV[18] } end
if users > 1 then peers[4], peers[5] = KEYS[8 + users], ARGV[19] end
local channel = open_channel(base, ARGV[1], peers, retention > 0 or max_messages > 0, not ARGV[call.topics])
local id = reserve_ids(KEYS[3], tonumber(ARGV[11]), now, 1)
if peers then peers[1] = int(message_ms(id)) end
local entry_id = int(channel[SEQ] + 1) .. '-' .. int(id)
place_message(channel, entry_id, ARGV[14], ARGV[16], true, nil, client_msg_no)
local extra = ARGV[15]
if channel[NEWEST] then extra, channel[NEWEST] = extra_after(channel[NEWEST]), id end
close_channel(channel, now, retention, max_messages)
local seq, pub = channel[SEQ], channel[PUB]
write_dedupe(KEYS[5], window, int(now), entry_id, pub ~= seq and int(pub), STREAM_HASH)
local keys = stream_keys(KEYS[1], client_msg_no)
redis.call('HSET', keys.stream, 'h', ARGV[10], 'i', int(id), 'q', int(seq), 't', int(now), 'sd', ARGV[6])
redis.call('SET', KEYS[6], client_msg_no)
for _, index in ipairs(call.indexes) do redis.call('SADD', index, ARGV[1]) end
publish_frame(call, message_frame(pub, id, seq, ARGV[14], extra))

stream = { keys = keys, no = client_msg_no, head = ARGV[10], seq = seq, next = 0, units = 0, bytes = 0, state = STREAM_ACTIVE, stopped = false }
add_event(call, stream, { id = ARGV[5], mark = ARGV[20], kind = 's', data = ARGV[6], units = 0, bytes = bytes, state = STREAM_ACTIVE, tail = ARGV[9] })
call.ended = ended_name
return step_reply(call, 'done', stream.state)
