-- Operations on the streams of channels. `lua/snapshot.lua` describes the keys of a stream.
--
-- An operation names its channel by the texts of `ChannelNames.appendArgs`: the beginning of the
-- names of the channel's keys, the channel key, the topic of a group ('' for a personal channel), and
-- for each user of a personal channel the uid, the beginning of the names of the keys of the user's
-- record, and that of the user's keys. The users are missing if they are in other slots: the caller
-- must then publish to them.
--
-- Reply of each operation
--   verdict u8, state of the stream u8 (index in STREAM_STATES plus 1, or 0), refusal
--   u8 (0 unless the verdict is STREAM_REFUSED); or, if there are publications that the caller must
--   publish, a list:
--   1  these bytes
--   2  member of `activeStreams` of a stream that ended, which the caller must remove after it has
--      added the end to `endedStreams` of the users, or ''
--   3  seq of that stream, or 0
--   4… publications, in order
local STREAM_DONE, STREAM_RUNNING, STREAM_MISSING, STREAM_LATE, STREAM_TAKEN, STREAM_STOPPED, STREAM_TOO_LARGE, STREAM_REFUSED = 1, 2, 3, 4, 5, 6, 7, 8
local STREAM_CLOSED, STREAM_CANCELLED, STREAM_INTERRUPTED = 1, 2, 3
local START_EVENT, CONTENT_EVENT, NOTE_EVENT, END_EVENT = 1, 2, 3, 4 -- kinds of events; a note is a tool call or a custom event
local MAX_ENDS = 200
local STREAM_END = '___TextMessageEnd'
local MAX_AHEAD_MS = 1000 -- maximum time by which an event may be in the future
local MARK_BYTES = 12 -- size of the mark of an event without its timestamp

local open_streams -- streams of the call by the name of their head and their clientMsgNo
local changed_streams -- list of the streams whose state must be written
local open_heads -- fields of the heads of channels by the name of the head, see `open_head`
local changed_heads -- list of the names of heads whose `pub` must be written
local refusals -- refusals of the call by channel, sender and check

-- Takes the texts that name a channel. Returns a table with the fields
--   base, key, head
--   topic      of the group, '' for a personal channel
--   users      list of { uid, record_base, base }
--   is_apart   true if the users are in other slots
--   frames     publications that the caller must publish, or nil
--   ended      member of `activeStreams` that the caller must remove, or nil
--   ended_seq  seq of the stream `ended`
local function take_channel(user_count)
  local base, key, topic = take_texts(3)
  local users = {}
  for at = 1, user_count do
    local uid, record_base, user_base = take_texts(3)
    users[at] = { uid = uid, record_base = record_base, base = user_base }
  end
  local is_apart = user_count == 0 and topic == ''
  return { base = base, key = key, head = base .. 'head:' .. key, topic = topic, users = users, is_apart = is_apart, frames = nil, ended = nil, ended_seq = nil }
end

-- Returns the fields of a channel's head: info and lists (see `channel_record.lua`), pub, and whether
-- pub must be written.
local function open_head(head)
  local fields = open_heads[head]
  if not fields then
    local values = call('HMGET', head, 'info', 'lists', 'pub')
    fields = { info = values[1], lists = values[2], pub = tonumber(values[3]) or 0, is_changed = false }
    open_heads[head] = fields
  end
  return fields
end

-- Returns the next publication number of a channel.
local function next_pub(head)
  local fields = open_head(head)
  fields.pub = fields.pub + 1
  if not fields.is_changed then
    fields.is_changed = true
    changed_heads[#changed_heads + 1] = head
  end
  return fields.pub
end

local function write_pub(head)
  local fields = open_heads[head]
  if not fields or not fields.is_changed then return end
  call('HSET', head, 'pub', int(fields.pub))
  fields.is_changed = false
end

-- Returns the refusal of a sender, 0 if the sender may send. If the users are in other slots, the
-- caller decides and passes its decision in `refusal`.
local function refusal_of(channel, uid, check, refusal)
  if check == 0 then return refusal end
  local case = channel.head .. '\n' .. check .. uid
  local known_refusal = refusals[case]
  if known_refusal then return known_refusal end
  if channel.topic ~= '' then
    local fields = open_head(channel.head)
    refusal = group_refusal(fields.info, fields.lists, channel.base, channel.key, uid, check)
  else
    local from, to = channel.users[1], channel.users[#channel.users]
    if to.uid == uid then from, to = to, from end
    refusal = person_refusal(to.record_base, '1:' .. to.uid, from.record_base, '1:' .. from.uid, uid, check)
  end
  refusals[case] = refusal
  return refusal
end

-- Returns a stream, or nil. The fields `offsets` and `texts` list what the call adds to
-- the keys `streamOffsets` and `streamText`, and `replies` the indexes of the operations that add it.
-- On a Cluster every key of an active stream is accessed
-- first, so that Redis reports one that has moved before the operation writes anything.
local function open_stream(channel, client_msg_no)
  local name = channel.head .. '\n' .. client_msg_no
  local stream = open_streams[name]
  if stream then return stream end
  local keys = stream_keys(channel.head, client_msg_no)
  local fields = call('HMGET', keys.stream, 'h', 'q', 'n', 'l', 'b', 'e', 'w', 'a')
  if not fields[1] then return nil end
  if is_cluster and tonumber(fields[6]) == STREAM_ACTIVE then
    local base = channel.base
    call('EXISTS', keys.stream, keys.text, keys.offsets, keys.notes, keys.event_ids, keys.active, keys.streams, keys.ends, base .. 'feed', base .. 'events', base .. 'messageIds')
  end
  stream = {
    keys = keys, no = client_msg_no, head = fields[1], seq = tonumber(fields[2]), next = tonumber(fields[3]), units = tonumber(fields[4]),
    bytes = tonumber(fields[5]), state = tonumber(fields[6]), stopped = fields[7] == '1', last = tonumber(fields[8]), is_new = false, is_apart = channel.is_apart, is_changed = false, offsets = {}, texts = {}, replies = {},
  }
  open_streams[name] = stream
  return stream
end

local function publish_frame(channel, frame)
  if channel.is_apart then
    channel.frames = channel.frames or {}
    channel.frames[#channel.frames + 1] = frame
  elseif channel.topic ~= '' then
    call('SPUBLISH', channel.topic, frame)
  else
    for _, user in ipairs(channel.users) do call('SPUBLISH', user.base .. 'topic' .. topic_end, frame) end
  end
end

-- Applies the rule of `isRetry` in `store/event-ids.ts`. A mark ends with the timestamp of the event
-- if the producer set one.
local function is_retry(stream, id, mark)
  local remembered = mark ~= '' and call('HGET', stream.keys.event_ids, id)
  if not remembered or remembered == '' then return false end
  if #remembered > MARK_BYTES and #mark > MARK_BYTES then return remembered == mark end
  return string.sub(remembered, 1, MARK_BYTES) == string.sub(mark, 1, MARK_BYTES)
end

-- Adds an event, which is not a retry, to a stream and publishes it. Fields of `event`:
--   id     event id that the producer chose, or ''
--   mark   what is remembered under its id, '' if nothing is
--   tail   part of its record after the event id
--   units  UTF-16 units of data
--   bytes  bytes that count against the limit of the stream
--   kind   see START_EVENT
--   state  state of the stream after the event
local function add_event(channel, stream, event)
  local index, keys = stream.next, stream.keys
  local id = cmsgpack.pack(event.id)
  local pub = next_pub(channel.head)
  local frame = event_frame(pub, stream.seq, index, stream.units, event.state, stream.head .. id .. event.tail)
  if event.kind == NOTE_EVENT then
    call('RPUSH', keys.notes, '\150' .. cmsgpack.pack(index) .. cmsgpack.pack(stream.units) .. (event.id ~= '' and id or cmsgpack.pack(int(index))) .. event.tail)
  elseif event.kind == END_EVENT then
    call('HSET', keys.stream, 'ed', event.data)
    if event.id ~= '' then call('HSET', keys.stream, 'ei', event.id) end
  elseif event.kind == START_EVENT and event.id ~= '' then
    call('HSET', keys.stream, 'si', event.id)
  end
  if event.mark ~= '' and call('HSETNX', keys.event_ids, event.id, event.mark) == 0 then
    call('HSET', keys.event_ids, event.id, '') -- different events share the id
  end
  stream.offsets[#stream.offsets + 1] = struct_pack('>I4', stream.units)
  stream.replies[#stream.replies + 1] = reply_at
  if event.kind == CONTENT_EVENT then
    stream.texts[#stream.texts + 1] = event.data
    stream.units = stream.units + event.units
  end
  stream.next, stream.bytes, stream.state = index + 1, stream.bytes + event.bytes, event.state
  if not stream.is_changed then
    stream.is_changed = true
    changed_streams[#changed_streams + 1] = stream
  end
  if channel.is_apart then call('HSET', keys.stream, 'f', frame) end
  publish_frame(channel, frame)
end

-- Adds the end of a stream to a key `endedStreams`, from which clients read the ends that they
-- missed.
local function remember_end(ends, stream, name, ended_ms)
  call('ZADD', ends, int(ended_ms), int(stream.seq) .. ':' .. name)
  call('ZREMRANGEBYRANK', ends, 0, -1 - MAX_ENDS)
end

-- Adds the end of a stream to the event feed.
local function emit_end(channel, stream)
  local base = channel.base
  if call('HEXISTS', base .. 'feed', 'number') == 0 then return end
  local counter, bucket = string.gsub(base, '{c%d+}:$', '{all}:messageIds'), WHOLE_SERVER
  if is_cluster then counter, bucket = base .. 'messageIds', tonumber(string.match(base, '{c(%d+)}:$')) end
  local state = stream.state == STREAM_CLOSED and 'closed' or stream.state == STREAM_CANCELLED and 'cancelled' or 'interrupted'
  local fields = '{"client_msg_no":' .. cjson.encode(stream.no) .. ',"state":"' .. state .. '"}'
  append_event(base .. 'feed', base .. 'events', counter, bucket, channel.key, STREAM_ENDED, int(stream.seq), fields)
end

-- Marks a stream as ended. Its event ids are kept for another `window`, because retries may arrive.
local function close_stream(channel, stream)
  call('DEL', stream.keys.active)
  -- Not lower than the time in the message id, even if the clock has been set back in the meantime.
  local ended_ms = math.max(now, message_ms(tonumber(call('HGET', stream.keys.stream, 'i'))))
  if channel.topic ~= '' then remember_end(stream.keys.ends, stream, stream.no, ended_ms) end
  for _, user in ipairs(channel.users) do
    call('SREM', user.base .. 'streams', channel.key)
    remember_end(user.base .. 'endedStreams', stream, stream.keys.name, ended_ms)
  end
  call('PEXPIRE', stream.keys.event_ids, int(window))
  emit_end(channel, stream)
  -- If the users are in other slots, the caller removes the stream from `activeStreams` after it has
  -- notified them.
  if channel.is_apart then channel.ended, channel.ended_seq = stream.keys.name, stream.seq end
end

-- Ends an active stream that its producer did not end. `is_stopped` is true if a viewer cancelled it.
local function end_stream(channel, stream, state, is_stopped)
  add_event(channel, stream, {
    id = '', mark = '', kind = END_EVENT, data = '', units = 0, bytes = 1, state = state,
    tail = cmsgpack.pack(STREAM_END) .. cmsgpack.pack('') .. cmsgpack.pack(now),
  })
  if is_stopped then
    stream.stopped = true
    call('HSET', stream.keys.stream, 'w', '1')
  end
  close_stream(channel, stream)
end

-- Adds the last event to the reply once more, because a caller that publishes to the users itself
-- may have failed to publish it.
local function publish_again(channel, stream)
  if not channel.is_apart then return end
  local frame = call('HGET', stream.keys.stream, 'f')
  if not frame then return end
  publish_frame(channel, frame)
  if stream.state ~= STREAM_ACTIVE then channel.ended, channel.ended_seq = stream.keys.name, stream.seq end
end

local function stream_reply(channel, verdict, state, refusal)
  local result = string.char(verdict, state and state + 1 or 0, refusal or 0)
  if not channel.frames then return result end
  local reply = { result, channel.ended or '', channel.ended_seq or 0 }
  for _, frame in ipairs(channel.frames) do reply[#reply + 1] = frame end
  return reply
end

-- Returns the reply to an event of a stream that has ended. The verdict is STREAM_DONE for an end
-- event and for a retry of an event that is already in the stream.
local function late_reply(channel, stream, kind, id, mark)
  if kind == START_EVENT then return stream_reply(channel, STREAM_LATE, stream.state) end
  if kind == END_EVENT or is_retry(stream, id, mark) then
    publish_again(channel, stream)
    return stream_reply(channel, STREAM_DONE, stream.state)
  end
  if stream.stopped then return stream_reply(channel, STREAM_STOPPED, stream.state) end
  return stream_reply(channel, kind == CONTENT_EVENT and STREAM_LATE or STREAM_MISSING, stream.state)
end

-- Adds an event to an active stream: content, a note or the end of the stream.
--
-- Numbers  kind u8, users u8, check u8 (see `permission.lua`, 0 for none), refusal u8 (decided by the
--          caller, 0 for none), cancels u8 (1 if an end cancels the stream), units u32 (UTF-16 units of
--          the data), bytes u32 (that count against the maximum)
-- Texts    the channel, clientMsgNo, sender, event id ('' for none), mark ('' if nothing is
--          remembered, see `store/event-ids.ts`), data, part of the event's record after the event id
local function stream_event()
  local kind, user_count, check, refusal, cancels, units, bytes = take_numbers('>BBBBBI4I4')
  local channel = take_channel(user_count)
  local client_msg_no, uid, id, mark, data, tail = take_texts(6)
  refusal = refusal_of(channel, uid, check, refusal)
  if refusal > 0 then return stream_reply(channel, STREAM_REFUSED, nil, refusal) end
  local stream = open_stream(channel, client_msg_no)
  if not stream then return stream_reply(channel, STREAM_MISSING) end
  if stream.state ~= STREAM_ACTIVE then return late_reply(channel, stream, kind, id, mark) end
  if is_retry(stream, id, mark) then
    publish_again(channel, stream)
    return stream_reply(channel, STREAM_DONE, stream.state)
  end
  local is_empty_end = kind == END_EVENT and data == ''
  if not is_empty_end and stream.bytes + bytes > max_stream_bytes then return stream_reply(channel, STREAM_TOO_LARGE, stream.state) end
  local end_state = cancels == 1 and STREAM_CANCELLED or STREAM_CLOSED
  local state = kind == END_EVENT and end_state or STREAM_ACTIVE
  add_event(channel, stream, { id = id, mark = mark, kind = kind, data = data, units = units, bytes = bytes, state = state, tail = tail })
  if kind == END_EVENT then close_stream(channel, stream) end
  return stream_reply(channel, STREAM_DONE, stream.state)
end

-- Ends an active stream because a viewer cancels it (the producer's next event is then answered
-- STREAM_STOPPED), or because it has had no event for too long. For a silent stream the verdict is
-- STREAM_DONE if this operation ended it, else STREAM_MISSING.
--
-- Numbers  users u8, since f64 (Unix ms: the stream ends only if it has had no event since then; -1
--          if a viewer cancels it)
-- Texts    the channel, clientMsgNo
local function stream_end()
  local user_count, since = take_numbers('>Bd')
  local channel = take_channel(user_count)
  local client_msg_no = take_texts(1)
  local streams, name = channel.base .. 'activeStreams', channel.key .. '\n' .. client_msg_no
  local stream = open_stream(channel, client_msg_no)
  if since >= 0 then
    local score = tonumber(call('ZSCORE', streams, name) or '')
    if not score or score >= since or stream and stream.is_changed then return stream_reply(channel, STREAM_MISSING) end
    -- The score is the time of the start, or of the last check. A time in the future is not used:
    -- the clock has been set back in the meantime.
    if stream and stream.state == STREAM_ACTIVE and stream.last >= since and stream.last <= now + MAX_AHEAD_MS then
      call('ZADD', streams, 'XX', int(stream.last), name)
      return stream_reply(channel, STREAM_MISSING)
    end
  end
  local is_ended = not stream or stream.state ~= STREAM_ACTIVE
  if not is_ended then
    end_stream(channel, stream, since >= 0 and STREAM_INTERRUPTED or STREAM_CANCELLED, since < 0)
  elseif stream then
    publish_again(channel, stream)
  end
  if not stream or since >= 0 and is_ended then
    if since >= 0 and not channel.frames then call('ZREM', streams, name) end
    return stream_reply(channel, STREAM_MISSING, stream and stream.state)
  end
  return stream_reply(channel, STREAM_DONE, stream.state)
end

-- Returns the extra of a message's frame (`wire.ts`), completed with the id of the channel's
-- previous message, 0 if that id is unknown.
local function extra_after(extra, id_before) return '\148' .. string.sub(extra, 2) .. struct_pack('>Bd', 203, id_before) end

-- Starts a stream and stores its message in the channel. With `force`, cancels the channel's active
-- stream first.
--
-- Numbers  users u8, check u8 and refusal u8 (as `stream_event`), force u8, bucket f64 (of the counter
--          of message ids, -1 on a single server), bytes u32 (that count against the maximum)
-- Texts    the channel, clientMsgNo, sender, event id ('' for none), mark ('' if nothing is
--          remembered), data, part of the event's record after the event id, beginning of the record
--          of each event of the stream, record of the message, extra of the message's frame, counter
--          of message ids
local function stream_start()
  local user_count, check, refusal, force, bucket, bytes = take_numbers('>BBBBdI4')
  local channel = take_channel(user_count)
  local client_msg_no, uid, id, mark, data, tail, event_head, record, extra, counter = take_texts(10)
  refusal = refusal_of(channel, uid, check, refusal)
  if refusal > 0 then return stream_reply(channel, STREAM_REFUSED, nil, refusal) end
  local ms = id_ms(bucket, now)
  local base, key = channel.base, channel.key
  local dedupe, active_key = base .. 'dedupe:' .. key .. '\n' .. uid .. '\n' .. client_msg_no, base .. 'activeStream:' .. key
  if is_cluster then call('EXISTS', channel.head, base .. 'log:' .. key, counter, base .. 'due', base .. 'feed', base .. 'events', dedupe, active_key) end
  local stream = open_stream(channel, client_msg_no)
  if stream and stream.state == STREAM_ACTIVE then
    if channel.is_apart then
      -- The message may not have been published to the users the first time.
      local first_id, _, pub = read_dedupe(dedupe, ms, window)
      local raw_entry = call('XRANGE', base .. 'log:' .. key, int(stream.seq), int(stream.seq))[1]
      local message = pub and raw_entry and log_entry(raw_entry)
      -- If the ids differ, a WuKongIM client reused the clientMsgNo.
      if message and message.id == first_id then publish_frame(channel, message_frame(pub, message.id, stream.seq, message.record, extra_after(extra, 0))) end
    end
    publish_again(channel, stream)
    return stream_reply(channel, STREAM_DONE, stream.state)
  end
  if stream then return late_reply(channel, stream, START_EVENT) end
  if read_dedupe(dedupe, ms, window) then return stream_reply(channel, STREAM_TAKEN) end
  local active = call('GET', active_key)
  local running = active and open_stream(channel, active)
  if running and force == 0 then return stream_reply(channel, STREAM_RUNNING) end
  if bytes > max_stream_bytes then return stream_reply(channel, STREAM_TOO_LARGE) end
  if running then end_stream(channel, running, STREAM_CANCELLED, false) end
  local ended = channel.ended

  local peers = false
  if #channel.users > 0 then
    peers = { false }
    for at, user in ipairs(channel.users) do
      peers[#peers + 1], peers[#peers + 2] = user.base .. 'peers', channel.users[#channel.users + 1 - at].uid
    end
  end
  write_pub(channel.head)
  local opened = open_channel(base, key, peers, retention > 0 or max_messages > 0, channel.is_apart)
  local message_id = reserve_ids(counter, bucket, ms, 1)
  if peers then peers[1] = int(message_ms(message_id)) end
  local entry_id = int(opened[SEQ] + 1) .. '-' .. int(message_id)
  place_message(opened, entry_id, record, uid, true, nil, client_msg_no)
  if opened[NEWEST] then extra, opened[NEWEST] = extra_after(extra, opened[NEWEST]), message_id end
  close_channel(opened, ms, retention, max_messages)
  local seq, pub = opened[SEQ], opened[PUB]
  open_heads[channel.head] = nil -- `close_channel` has written it
  write_dedupe(dedupe, window, int(ms), entry_id, pub ~= seq and int(pub), STREAM_HASH)
  local keys = stream_keys(channel.head, client_msg_no)
  call('HSET', keys.stream, 'h', event_head, 'i', int(message_id), 'q', int(seq), 't', int(ms), 'sd', data)
  call('SET', active_key, client_msg_no)
  for _, user in ipairs(channel.users) do call('SADD', user.base .. 'streams', key) end
  publish_frame(channel, message_frame(pub, message_id, seq, record, extra))

  stream = { keys = keys, no = client_msg_no, head = event_head, seq = seq, next = 0, units = 0, bytes = 0, state = STREAM_ACTIVE, stopped = false, last = now, is_new = true, is_apart = channel.is_apart, is_changed = false, offsets = {}, texts = {}, replies = {} }
  open_streams[channel.head .. '\n' .. client_msg_no] = stream
  add_event(channel, stream, { id = id, mark = mark, kind = START_EVENT, data = data, units = 0, bytes = bytes, state = STREAM_ACTIVE, tail = tail })
  channel.ended = ended
  return stream_reply(channel, STREAM_DONE, stream.state)
end

local function begin_streams()
  open_streams, changed_streams, open_heads, changed_heads, refusals = {}, {}, {}, {}, {}
  dedupe_ttl = nil -- the window may have been changed
end

-- Joins strings. A join of a single string would copy it.
local function joined(strings) return strings[2] and table.concat(strings) or strings[1] end

local function write_stream(stream)
  local keys, count = stream.keys, #stream.offsets
  call('SETRANGE', keys.offsets, int((stream.next - count) * 4), joined(stream.offsets))
  if stream.texts[1] then call('APPEND', keys.text, joined(stream.texts)) end
  call('HSET', keys.stream, 'n', int(stream.next), 'l', int(stream.units), 'b', int(stream.bytes), 'e', stream.state, 'a', int(now))
  if stream.state ~= STREAM_ACTIVE and not stream.is_apart then
    call('ZREM', keys.streams, keys.name)
  elseif stream.is_new or stream.is_apart then
    call('ZADD', keys.streams, int(now), keys.name)
  end
end

-- Writes what the call has changed. If a stream cannot be written, its operations have failed.
local function end_streams(replies)
  for _, head in ipairs(changed_heads) do write_pub(head) end
  for _, stream in ipairs(changed_streams) do
    local is_done, failure = pcall(write_stream, stream)
    if not is_done then
      for _, at in ipairs(stream.replies) do replies[at] = failed_reply(failure) end
    end
  end
end
