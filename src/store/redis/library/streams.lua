-- Operations on channels' streams. The events of a stream are the records of its message's log
-- (`library/logs.lua`). A channel has at most one active stream that was started by `POST /event`.
-- A further stream that is not closed at once can be created through the Durable Streams protocol
-- only if the channel has fewer than MAX_OPEN_STREAMS active streams of either kind.
--
-- An operation names its channel by the texts of `ChannelNames.appendArgs`: the channel's key
-- prefix, the channel key, the topic of a group ('' for a personal channel), and for each user of a
-- personal channel the uid, the key prefix of the user's record and the key prefix of the user. The
-- users are missing if they are in other slots. In that case, the caller must publish to them.
--
-- Reply of each operation, unless its comment describes another reply
--   verdict u8, state of the stream u8 (index in STREAM_STATES plus 1, 0 if not reported), refusal
--   u8 (0 unless the verdict is STREAM_REFUSED)
-- If the caller must send publications, the reply is a list instead:
--   1  these bytes
--   2  if a stream has ended, its member of `activeStreams`, else ''. The caller must remove this
--      member after it has added the end to `endedStreams` of the users
--   3  seq of that stream's message, 0 if no stream has ended
--   4  Unix ms of the stream's end, 0 if no stream has ended
--   5… publications, in order
local STREAM_DONE, STREAM_RUNNING, STREAM_MISSING, STREAM_LATE, STREAM_TAKEN, STREAM_STOPPED, STREAM_TOO_LARGE, STREAM_REFUSED = 1, 2, 3, 4, 5, 6, 7, 8
local CLOSED, STOPPED, CANCELLED, INTERRUPTED = 1, 2, 3, 4 -- indexes in LOG_ENDINGS
local STATE_OF_ENDING = { [0] = 0, 1, 2, 2, 3 } -- index in STREAM_STATES for each index in LOG_ENDINGS
local START_EVENT, CONTENT_EVENT, END_EVENT = 1, 2, 4 -- kinds of events; 3 is a tool call or a custom event
local STREAM_TYPE = 'application/json' -- content type of the log
local MAX_ENDS = 200 -- maximum number of members of a key `endedStreams`
local MAX_OPEN_STREAMS = 100 -- see `broker/log-ports.ts`
local TOO_MANY_STREAMS = 3 -- in a reply with CREATE_FULL: the channel has MAX_OPEN_STREAMS streams
local MAX_AHEAD_MS = 1000 -- maximum time by which an event may be in the future
local MARK_BYTES = 12 -- size of a mark without the timestamp of its event

local SESSION_SCORE = '0' -- score in `openStreams` of a stream that POST /event has started
-- Verdicts of `stream_append` in addition to those of `log_append`
local APPEND_REFUSED, APPEND_OTHER_SENDER, APPEND_TOO_LARGE = 14, 15, 16
local CREATED, CREATE_EXISTS, CREATE_DELETED, CREATE_FULL, CREATE_TAKEN, CREATE_REFUSED = 1, 2, 3, 4, 5, 6 -- verdicts of `stream_create`

local listed_streams -- logs of streams that must be added to `activeStreams` or removed from it
local open_heads -- fields of the heads of channels by the name of the head, see `open_head`
local changed_heads -- list of the names of heads whose `pub` must be written
local refusals -- refusals that the call has determined, by channel, sender and check

-- Reads the texts that name a channel. Returns a table with the fields
--   base, key, head  key prefix of the channel, channel key, and name of the key `head`
--   topic      of the group, '' for a personal channel
--   users      list of { uid, record_base, base }
--   is_apart   true if the users are in other slots
--   frames     publications that the caller must publish, nil if there are none
--   ended      elements 2 to 4 of the reply if a stream has ended, else nil
local function take_channel(user_count)
  local base, key, topic = take_texts(3)
  local users = {}
  for at = 1, user_count do
    local uid, record_base, user_base = take_texts(3)
    users[at] = { uid = uid, record_base = record_base, base = user_base }
  end
  local is_apart = user_count == 0 and topic == ''
  return { base = base, key = key, head = base .. 'head:' .. key, topic = topic, users = users, is_apart = is_apart, frames = nil, ended = nil }
end

-- Returns the fields of a channel's head: info and lists (see `channel_record.lua`), pub, and a
-- flag that is true if pub must be written.
local function open_head(head)
  local fields = open_heads[head]
  if not fields then
    local values = call('HMGET', head, 'info', 'lists', 'pub')
    fields = { info = values[1], lists = values[2], pub = tonumber(values[3]) or 0, is_changed = false }
    open_heads[head] = fields
  end
  return fields
end

-- Returns the fields `i`, `t`, `n` and `c` that the head of the log will have after the call.
local function stream_fields(log)
  return { int(log.incarnation), log.type, tail_of(log), log.ending > 0 and int(log.ending) or false }
end

-- Assigns the next publication number of a channel and returns it.
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

-- Returns the refusal of a sender, or 0 if the sender may send. If the users are in other slots,
-- the caller decides and passes its decision in `refusal`.
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

local function log_name(channel, client_msg_no) return channel.key .. '\n' .. client_msg_no end

-- Returns the log of a stream, nil if there is no such stream. On a Cluster, accesses every key of
-- an active stream first, so that Redis reports a moved key before the operation writes anything.
local function open_stream(channel, client_msg_no)
  local log = open_log(channel.base, log_name(channel, client_msg_no))
  if not log.event_head then return nil end
  if is_cluster and log.ending == 0 and not log.is_changed then
    local base, key = channel.base, channel.key
    call('EXISTS', base .. 'openStreams:' .. key, base .. 'activeStreams', base .. 'endedStreams:' .. key, base .. 'feed', base .. 'events', base .. 'messageIds')
  end
  return log
end

-- Returns true if the message of an active stream is at least twice as old as the retention time.
-- Such a stream accepts no events except its end, and is interrupted once it is silent. Otherwise,
-- its message and all later messages of the channel would be kept until it ends.
local function is_past(log) return retention > 0 and now >= message_ms(log.message_id) + 2 * retention end

-- Publishes a frame to the viewers of a channel. If the users are in other slots, adds the frame to
-- `channel.frames` instead, so that the caller publishes it. `log` is the same as in `publish`.
local function publish_frame(channel, log, frame)
  if channel.is_apart then
    channel.frames = channel.frames or {}
    channel.frames[#channel.frames + 1] = frame
  elseif channel.topic ~= '' then
    publish(log, channel.topic, frame)
  else
    for _, user in ipairs(channel.users) do publish(log, user.base .. 'topic' .. topic_end, frame) end
  end
end

-- Returns true if an event is a retry, by the same rule as `isRetry` in `store/event-ids.ts`. A
-- mark ends with the timestamp of the event if the producer set one.
local function is_retry(log, id, mark)
  local remembered = mark ~= '' and call('HGET', log.base .. 'logEventIds:' .. log.name, id)
  if not remembered or remembered == '' then return false end
  if #remembered > MARK_BYTES and #mark > MARK_BYTES then return remembered == mark end
  return string.sub(remembered, 1, MARK_BYTES) == string.sub(mark, 1, MARK_BYTES)
end

-- Returns the number of UTF-16 code units that a frame adds to the text that viewers are shown, and
-- adds the frame's bytes to `log.bytes`. `event` has the same fields as in `add_event`.
local function count_shown(log, event)
  if not log.is_limited then
    log.bytes = log.bytes + event.bytes
    return event.units
  end
  if log.cut_index >= 0 then return 0 end
  if event.shown == 0 or log.bytes + event.shown <= max_stream_bytes then
    log.bytes = log.bytes + event.shown
    return event.units
  end
  -- The limit is reached in this frame. `move_tail` has already counted the frame.
  local units, first = 0, log.records - event.records
  for at = 0, event.records - 1 do
    local size, length = event.shown, 0
    if event.parts ~= '' then size, length = struct_unpack('>I4I4', event.parts, at * 8 + 1) end
    if log.bytes + size > max_stream_bytes then
      log.cut_index, log.cut_at, log.is_view_changed = first + at, log.position, true
      break
    end
    log.bytes, units = log.bytes + size, units + length
  end
  return units
end

-- Adds a frame to a stream and publishes its events. Fields of `event`:
--   frame    a frame of the log, without the last two fields
--   crc      CRC-32 of the frame, see `broker/log-frame.ts`
--   records  number of records in the frame, each of which is an event; nil for an event frame
--   id       event id that the producer chose, '' if the producer chose none
--   mark     value to store under the id (`store/event-ids.ts`), '' to store none
--   units    UTF-16 code units by which the frame extends the text
--   bytes    bytes that count against the limit of a stream that `POST /event` has started
--   shown    bytes that count against the limit of what viewers are shown, in a stream that was
--            created through the Durable Streams protocol
--   parts    for each of several records its part of `shown` and of `units` (u32 each), '' for one
--            record
--   ending   index in LOG_ENDINGS if the frame ends the stream, else 0
local function add_event(channel, log, event)
  local first, position, check_before, offset = log.records, log.position, log.check, log.units
  local is_cut, is_event = log.cut_index >= 0, not event.records
  event.records = event.records or 1
  local whole, check = seal_frame(log, event.frame, event.crc)
  -- After the event `cut_index`, viewers are shown only the end.
  local pub = (not is_cut or event.ending > 0) and next_pub(channel.head)
  if event.mark ~= '' then
    local ids = log.base .. 'logEventIds:' .. log.name
    if call('HSETNX', ids, event.id, event.mark) == 1 then
      note_field(log, ids, event.id)
    else
      call('HSET', ids, event.id, '') -- several different events share the id
    end
  end
  if not log.unwritten[1] then log.unwritten_at = position end
  log.unwritten[#log.unwritten + 1] = whole
  move_tail(log, whole, check, event.records)
  log.units, log.last = offset + count_shown(log, event), now
  if event.ending > 0 then log.ending, log.is_closing, log.end_at, log.is_view_changed = event.ending, true, position, true end
  log.is_apart = channel.is_apart
  if log.is_new or log.is_apart or event.ending > 0 then listed_streams[#listed_streams + 1] = log end
  change_log(log)
  if log.is_limited then publish_append(log, position, check_before, whole) end
  if not pub then return end
  local frame
  if is_event and not log.is_limited then
    frame = event_frame(pub, log.seq, first, offset, STATE_OF_ENDING[event.ending], log.event_head, whole)
  else
    frame = records_frame(pub, log.seq, offset, log.cut_index, log.max_data, log.event_head, whole)
  end
  if channel.is_apart then log.publication = frame end
  publish_frame(channel, log, frame)
end

-- Adds the end of a stream to a key `endedStreams`, in which nodes find the ends that a client has
-- missed. Keeps the newest MAX_ENDS ends.
local function remember_end(ends, log, name, ended_ms)
  call('ZADD', ends, int(ended_ms), int(log.seq) .. ':' .. name)
  call('ZREMRANGEBYRANK', ends, 0, -1 - MAX_ENDS)
end

-- Returns the key of the message id counter, and the counter's bucket.
local function id_counter(base)
  if is_cluster then return base .. 'messageIds', tonumber(string.match(base, '{c(%d+)}:$')) end
  return string.gsub(base, '{c%d+}:$', '{all}:messageIds'), WHOLE_SERVER
end

-- Returns the Unix ms to record for a stream that ends now. Even if the clock has been set back,
-- the result is not earlier than the time in the id of any message in the channel.
local function end_ms(channel)
  local counter = id_counter(channel.base)
  return math.max(now, message_ms(tonumber(call('GET', counter) or '0')))
end

-- Adds the end of a stream to the event feed if the feed is on.
local function emit_end(channel, log, client_msg_no)
  local base = channel.base
  if call('HEXISTS', base .. 'feed', 'number') == 0 then return end
  local counter, bucket = id_counter(base)
  local state = log.ending == INTERRUPTED and 'interrupted' or log.ending == CLOSED and 'closed' or 'cancelled'
  local fields = '{"client_msg_no":' .. cjson.encode(client_msg_no) .. ',"state":"' .. state .. '"}'
  append_event(base .. 'feed', base .. 'events', counter, bucket, channel.key, STREAM_ENDED, int(log.seq), fields)
end

-- Updates `openStreams`, and `streams` of the users, after a stream has ended. Adds the end to
-- `endedStreams` and to the event feed. Keeps the stream's event ids for another `window`, because
-- retries may arrive.
local function close_stream(channel, log, client_msg_no)
  local streams = channel.base .. 'openStreams:' .. channel.key
  call('ZREM', streams, client_msg_no)
  local is_last = call('EXISTS', streams) == 0
  local ended_ms = end_ms(channel)
  if channel.topic ~= '' then remember_end(channel.base .. 'endedStreams:' .. channel.key, log, client_msg_no, ended_ms) end
  for _, user in ipairs(channel.users) do
    if is_last then call('SREM', user.base .. 'streams', channel.key) end
    remember_end(user.base .. 'endedStreams', log, log.name, ended_ms)
  end
  call('PEXPIRE', log.base .. 'logEventIds:' .. log.name, int(window))
  emit_end(channel, log, client_msg_no)
  -- If the users are in other slots, the caller removes the stream from `activeStreams` after it
  -- has notified them.
  if channel.is_apart then channel.ended = { log.name, log.seq, ended_ms } end
end

-- Ends an active stream with an event that the producer did not send: for a cancel, an
-- interruption, or a close through the Durable Streams protocol. `event` has the fields frame, crc
-- and ending (see `add_event`).
local function end_stream(channel, log, client_msg_no, event)
  event.id, event.mark, event.units, event.bytes, event.shown, event.parts = '', '', 0, 1, 0, ''
  add_event(channel, log, event)
  close_stream(channel, log, client_msg_no)
end

-- If the users are in other slots, adds the last event to the reply once more, because an earlier
-- caller may have failed to publish it to them.
local function publish_again(channel, log)
  if not channel.is_apart then return end
  local frame = log.publication or call('HGET', log.head, 'f')
  if not frame then return end
  publish_frame(channel, log, frame)
  if log.ending > 0 then channel.ended = { log.name, log.seq, end_ms(channel) } end
end

-- Returns the reply of an operation. The arguments after `channel` are its result: one value, or
-- several values that become a list. If the caller must send publications, the reply continues with
-- the three fields of `channel.ended` and then the publications.
local function with_frames(channel, ...)
  local reply = { ... }
  if not channel.frames then return #reply == 1 and reply[1] or reply end
  for _, element in ipairs(channel.ended or { '', 0, 0 }) do reply[#reply + 1] = element end
  for _, frame in ipairs(channel.frames) do reply[#reply + 1] = frame end
  return reply
end

-- Returns the reply of an operation. `log` is the stream's log, nil if there is no stream.
local function stream_reply(channel, verdict, log, refusal)
  return with_frames(channel, string.char(verdict, log and STATE_OF_ENDING[log.ending] + 1 or 0, refusal or 0))
end

-- Returns the reply to an event of a stream that has ended. The verdict is STREAM_DONE for an end
-- event and for a retry of an event that is already in the stream.
local function late_reply(channel, log, kind, id, mark)
  if kind == START_EVENT then return stream_reply(channel, STREAM_LATE, log) end
  if kind == END_EVENT or is_retry(log, id, mark) then
    publish_again(channel, log)
    return stream_reply(channel, STREAM_DONE, log)
  end
  if log.ending == STOPPED then return stream_reply(channel, STREAM_STOPPED, log) end
  return stream_reply(channel, kind == CONTENT_EVENT and STREAM_LATE or STREAM_MISSING, log)
end

-- Adds an event to an active stream: content, a tool call, a custom event or the end.
--
-- Numbers  kind u8, users u8, check u8 (see `permission.lua`, 0 for none), refusal u8 (decided by
--          the caller, 0 for none), ending u8 (index in LOG_ENDINGS, 0 unless it is an end), fits
--          u8 (1 to ignore `max_stream_bytes`), units u32, bytes u32, shown u32 and crc u32 (see
--          `add_event`)
-- Texts    the channel, clientMsgNo, sender, event id ('' for none), mark ('' to store no mark, see
--          `store/event-ids.ts`), frame without its last two fields
local function stream_event()
  local kind, user_count, check, refusal, ending, fits, units, bytes, shown, crc = take_numbers('>BBBBBBI4I4I4I4')
  local channel = take_channel(user_count)
  local client_msg_no, uid, id, mark, frame = take_texts(5)
  refusal = refusal_of(channel, uid, check, refusal)
  if refusal > 0 then return stream_reply(channel, STREAM_REFUSED, nil, refusal) end
  local log = open_stream(channel, client_msg_no)
  if not log then return stream_reply(channel, STREAM_MISSING) end
  if log.ending > 0 then return late_reply(channel, log, kind, id, mark) end
  if is_retry(log, id, mark) then
    publish_again(channel, log)
    return stream_reply(channel, STREAM_DONE, log)
  end
  if ending == 0 and is_past(log) then return stream_reply(channel, kind == CONTENT_EVENT and STREAM_LATE or STREAM_MISSING, log) end
  local is_full = fits == 0 and log.bytes + bytes > max_stream_bytes
  if log.is_limited then is_full = ending == 0 and full_verdict(log, frame, 1) end
  if is_full then return stream_reply(channel, STREAM_TOO_LARGE, log) end
  add_event(channel, log, { frame = frame, crc = crc, id = id, mark = mark, units = units, bytes = bytes, shown = shown, parts = '', ending = ending })
  if ending > 0 then close_stream(channel, log, client_msg_no) end
  return stream_reply(channel, STREAM_DONE, log)
end

-- Ends an active stream because a viewer cancels the stream, or because the stream has had no event
-- since the time `since`. After a cancel, the producer's new content, tool calls and custom events
-- get STREAM_STOPPED. For a silent stream, the verdict is STREAM_DONE if this operation ended it,
-- else STREAM_MISSING.
--
-- Numbers  users u8, since f64 (Unix ms: the stream ends only if it has had no event since then; -1
--          if a viewer cancels it), crc u32 (of the frame)
-- Texts    the channel, clientMsgNo, frame of the end event (as `stream_event`)
local function stream_end()
  local user_count, since, crc = take_numbers('>BdI4')
  local channel = take_channel(user_count)
  local client_msg_no, frame = take_texts(2)
  local streams, name = channel.base .. 'activeStreams', log_name(channel, client_msg_no)
  local log = open_stream(channel, client_msg_no)
  if since >= 0 then
    local score = tonumber(call('ZSCORE', streams, name) or '')
    if not score or score >= since or log and log.is_changed then return stream_reply(channel, STREAM_MISSING) end
    -- The score is the time of the start or of an event, and the last event may be newer. If the
    -- time of the last event is in the future, it is ignored, because the clock has been set back
    -- since then.
    if log and log.ending == 0 and log.last >= since and log.last <= now + MAX_AHEAD_MS then
      call('ZADD', streams, 'XX', int(log.last), name)
      return stream_reply(channel, STREAM_MISSING)
    end
  end
  local is_ended = not log or log.ending > 0
  if not is_ended then
    end_stream(channel, log, client_msg_no, { frame = frame, crc = crc, ending = since >= 0 and INTERRUPTED or STOPPED })
  elseif log then
    publish_again(channel, log)
  end
  if not log or since >= 0 and is_ended then
    if since >= 0 and not channel.frames then call('ZREM', streams, name) end
    return stream_reply(channel, STREAM_MISSING, log)
  end
  return stream_reply(channel, STREAM_DONE, log)
end

-- Adds `id_before` to the field `extra` of a message's frame (`wire.ts`) and returns the result.
-- `id_before` is the id of the channel's previous message, 0 if that id is unknown.
local function extra_after(extra, id_before) return '\148' .. string.sub(extra, 2) .. struct_pack('>Bd', 203, id_before) end

-- Accesses every key that the start of a stream writes, so that Redis reports a moved key before
-- the operation writes anything.
local function access_keys(channel, counter, dedupe)
  if not is_cluster then return end
  local base, key = channel.base, channel.key
  call('EXISTS', channel.head, base .. 'log:' .. key, base .. 'expiry:' .. key, base .. 'redDots:' .. key, counter, base .. 'due', base .. 'feed', base .. 'events', dedupe, base .. 'openStreams:' .. key)
end

-- Stores the message of a new stream in the channel, publishes it and returns the log of the
-- stream, which has no frames yet. Fields of `start`:
--   client_msg_no, uid
--   record, extra   of the message, see `wire.ts`
--   counter, bucket, ms  message id counter, its bucket (-1 on a single server), and `id_ms`
--   dedupe          key of the message's dedupe record
--   incarnation, type, event_head  of the log, see `load_log`
--   expiry          Unix ms when the message expires, 0 if it does not
--   max_data        nil if `POST /event` starts the stream, else `maxDataBytes` for field v
local function begin_stream(channel, start)
  local base, key, extra = channel.base, channel.key, start.extra
  local peers = false
  if #channel.users > 0 then
    peers = { false }
    for at, user in ipairs(channel.users) do
      peers[#peers + 1], peers[#peers + 2] = user.base .. 'peers', channel.users[#channel.users + 1 - at].uid
    end
  end
  write_pub(channel.head)
  local opened = open_channel(base, key, peers, retention > 0 or max_messages > 0, channel.is_apart)
  local message_id = reserve_ids(start.counter, start.bucket, start.ms, 1)
  if peers then peers[1] = int(message_ms(message_id)) end
  local entry_id = int(opened[SEQ] + 1) .. '-' .. int(message_id)
  place_message(opened, entry_id, start.record, start.uid, true, start.expiry > 0 and int(start.expiry), start.client_msg_no)
  if opened[NEWEST] then extra, opened[NEWEST] = extra_after(extra, opened[NEWEST]), message_id end
  close_channel(opened, start.ms, retention, max_messages)
  local seq, pub = opened[SEQ], opened[PUB]
  open_heads[channel.head] = nil -- `close_channel` has written it
  write_dedupe(start.dedupe, window, int(start.ms), entry_id, pub ~= seq and int(pub), STREAM_HASH)
  call('ZADD', base .. 'openStreams:' .. key, start.max_data and int(seq) or SESSION_SCORE, start.client_msg_no)
  for _, user in ipairs(channel.users) do call('SADD', user.base .. 'streams', key) end
  publish_frame(channel, false, message_frame(pub, message_id, seq, start.record, extra))

  local log = open_log(base, log_name(channel, start.client_msg_no))
  log.incarnation, log.type, log.event_head, log.message_id, log.seq, log.is_new, log.message_expiry = start.incarnation, start.type, start.event_head, message_id, seq, true, start.expiry
  if start.max_data then log.is_limited, log.max_data, log.is_view_changed = true, start.max_data, true end
  return log
end

-- If the users are in other slots, adds the last event of a stream and, while the stream is active,
-- its message to the reply once more, for the same reason as `publish_again`.
local function publish_start_again(channel, log, dedupe, ms, extra)
  if channel.is_apart and log.ending == 0 then
    local first_id, _, pub = read_dedupe(dedupe, ms, window)
    local raw_entry = call('XRANGE', channel.base .. 'log:' .. channel.key, int(log.seq), int(log.seq))[1]
    local message = pub and raw_entry and log_entry(raw_entry)
    -- The ids differ if a WuKongIM client has reused the clientMsgNo.
    if message and message.id == first_id then publish_frame(channel, false, message_frame(pub, message.id, log.seq, message.record, extra_after(extra, 0))) end
  end
  publish_again(channel, log)
end

-- Starts a stream and stores its message in the channel. With `force`, first cancels the channel's
-- active stream that was started by `POST /event`.
--
-- Numbers  users u8, check u8 and refusal u8 (as `stream_event`), force u8, bucket f64 (of the
--          message id counter, -1 on a single server), bytes u32 (see `add_event`),
--          crc u32 (of the frame), incarnation u32 (of the log), end crc u32 (of the end frame),
--          expiry f64 (Unix ms, or 0 if the message does not expire)
-- Texts    the channel, clientMsgNo, sender, event id ('' for none), mark ('' to store no
--          mark), frame (as `stream_event`), `event_head` of the log, record of the message,
--          extra of the message's frame, message id counter, frame of the event that ends another
--          stream ('' without `force`)
local function stream_start()
  local user_count, check, refusal, force, bucket, bytes, crc, incarnation, end_crc, expiry = take_numbers('>BBBBdI4I4I4I4d')
  local channel = take_channel(user_count)
  local client_msg_no, uid, id, mark, frame, event_head, record, extra, counter, end_frame = take_texts(10)
  refusal = refusal_of(channel, uid, check, refusal)
  if refusal > 0 then return stream_reply(channel, STREAM_REFUSED, nil, refusal) end
  local ms = id_ms(bucket, now)
  local base, key = channel.base, channel.key
  local dedupe = base .. 'dedupe:' .. key .. '\n' .. uid .. '\n' .. client_msg_no
  access_keys(channel, counter, dedupe)
  local existing = open_stream(channel, client_msg_no)
  if existing and existing.ending == 0 then
    publish_start_again(channel, existing, dedupe, ms, extra)
    return stream_reply(channel, STREAM_DONE, existing)
  end
  if existing then return late_reply(channel, existing, START_EVENT) end
  if read_dedupe(dedupe, ms, window) then return stream_reply(channel, STREAM_TAKEN) end
  local active = call('ZRANGEBYSCORE', base .. 'openStreams:' .. key, SESSION_SCORE, SESSION_SCORE, 'LIMIT', 0, 1)[1]
  local running = active and open_stream(channel, active)
  if running and force == 0 then return stream_reply(channel, STREAM_RUNNING) end
  if bytes > max_stream_bytes then return stream_reply(channel, STREAM_TOO_LARGE) end
  if running then end_stream(channel, running, active, { frame = end_frame, crc = end_crc, ending = CANCELLED }) end
  local ended = channel.ended
  local log = begin_stream(channel, {
    client_msg_no = client_msg_no, uid = uid, record = record, extra = extra, counter = counter, bucket = bucket, ms = ms, dedupe = dedupe,
    incarnation = incarnation, type = STREAM_TYPE, event_head = event_head, expiry = expiry, max_data = nil,
  })
  add_event(channel, log, { frame = frame, crc = crc, id = id, mark = mark, units = 0, bytes = bytes, shown = 0, parts = '', ending = 0 })
  channel.ended = ended
  return stream_reply(channel, STREAM_DONE, log)
end

-- Creates a stream through the Durable Streams protocol unless it exists, and stores its message in
-- the channel.
--
-- Numbers  users u8, check u8 and refusal u8 (as `stream_event`), bucket f64 (as `stream_start`),
--          incarnation u32 (of the log), max data u32 (see `ViewLimits`), start crc u32 (of the
--          start frame), records u32, crc u32 (of the frame), shown f64, units u32 (see
--          `add_event`), end crc u32 (of the end frame)
-- Texts    the channel, clientMsgNo, sender, content type, start frame, `event_head` of the log,
--          record of the message, extra of the message's frame, message id counter, frame of the
--          first records ('' for none), parts (see `add_event`), end frame ('' to keep the stream
--          open)
-- Reply    list, which begins with one of
--            CREATED or CREATE_EXISTS, the fields `i`, `t`, `n` and `c` of the head, and field `h`
--            CREATE_FULL, and the verdict of `log_append` or TOO_MANY_STREAMS
--            CREATE_REFUSED, and the refusal
--            CREATE_DELETED or CREATE_TAKEN
--          Then, if the caller must publish, the elements 2… of the list that the beginning of
--          this file describes.
local function stream_create()
  local user_count, check, refusal, bucket, incarnation, max_data, start_crc, records, crc, shown, units, end_crc = take_numbers('>BBBdI4I4I4I4I4dI4I4')
  local channel = take_channel(user_count)
  local client_msg_no, uid, content_type, start_frame, event_head, record, extra, counter, frame, parts, end_frame = take_texts(11)
  refusal = refusal_of(channel, uid, check, refusal)
  if refusal > 0 then return { CREATE_REFUSED, refusal, false } end
  local ms = id_ms(bucket, now)
  local dedupe = channel.base .. 'dedupe:' .. channel.key .. '\n' .. uid .. '\n' .. client_msg_no
  access_keys(channel, counter, dedupe)
  local existing = open_stream(channel, client_msg_no)
  if existing then
    if absence_of(existing) then return { CREATE_DELETED, false, false } end
    publish_start_again(channel, existing, dedupe, ms, extra)
    return with_frames(channel, CREATE_EXISTS, stream_fields(existing), existing.event_head)
  end
  if read_dedupe(dedupe, ms, window) then return { CREATE_TAKEN, false, false } end
  local full = full_verdict(open_log(channel.base, log_name(channel, client_msg_no)), frame, records)
  if full then return { CREATE_FULL, full, false } end
  if end_frame == '' and call('ZCARD', channel.base .. 'openStreams:' .. channel.key) >= MAX_OPEN_STREAMS then
    return { CREATE_FULL, TOO_MANY_STREAMS, false }
  end
  local log = begin_stream(channel, {
    client_msg_no = client_msg_no, uid = uid, record = record, extra = extra, counter = counter, bucket = bucket, ms = ms, dedupe = dedupe,
    incarnation = incarnation, type = content_type, event_head = event_head, expiry = 0, max_data = max_data,
  })
  add_event(channel, log, { frame = start_frame, crc = start_crc, id = '', mark = '', units = 0, bytes = 0, shown = 0, parts = '', ending = 0 })
  if records > 0 then
    add_event(channel, log, { frame = frame, crc = crc, records = records, id = '', mark = '', units = units, bytes = 0, shown = shown, parts = parts, ending = 0 })
  end
  if end_frame ~= '' then end_stream(channel, log, client_msg_no, { frame = end_frame, crc = end_crc, ending = CLOSED }) end
  return with_frames(channel, CREATED, stream_fields(log), event_head)
end

-- Appends to a stream through the Durable Streams protocol, closes the stream, or both.
--
-- Numbers  users u8, check u8 and refusal u8 (as `stream_event`), records u32, crc u32 (of the
--          frame), has order u8, epoch f64, number f64 (as `log_append`), bytes f64, shown f64,
--          units u32 (see `add_event`), end crc u32 (of the end frame)
-- Texts    the channel, clientMsgNo, sender, frame ('' for none), parts (see `add_event`), content
--          type ('' for none), producer ('' for none), order, end frame ('' to keep the stream
--          open)
-- Reply    one of
--            the reply of `log_append`
--            APPEND_REFUSED u8, and the refusal u8
--            APPEND_OTHER_SENDER u8
--            APPEND_TOO_LARGE u8
--          If the caller must publish, these bytes are element 1 of the list that the beginning of
--          this file describes.
local function stream_append()
  local user_count, check, refusal, records, crc, has_order, epoch, number, bytes, shown, units, end_crc = take_numbers('>BBBI4I4BddddI4I4')
  local channel = take_channel(user_count)
  local client_msg_no, uid, frame, parts, content_type, producer, order, end_frame = take_texts(8)
  local log = open_stream(channel, client_msg_no)
  local absence = absence_of(log or {})
  if absence then return string.char(absence) end
  if cmsgpack.unpack(log.event_head)[4] ~= uid then return string.char(APPEND_OTHER_SENDER) end
  refusal = refusal_of(channel, uid, check, refusal)
  if refusal > 0 then return string.char(APPEND_REFUSED, refusal) end
  local append = { records = records, frame = frame, type = content_type, producer = producer, epoch = epoch, number = number, has_order = has_order, order = order }
  local judged, silent = append_refusal(log, append)
  if judged then
    if is_repeated(judged) then publish_again(channel, log) end
    return with_frames(channel, judged)
  end
  if records > 0 and is_past(log) then return closed_reply(log, INTERRUPTED, epoch) end
  if not log.is_limited and log.bytes + bytes > max_stream_bytes then return string.char(APPEND_TOO_LARGE) end
  note_append(log, append, silent)
  if records > 0 then
    add_event(channel, log, { frame = frame, crc = crc, records = records, id = '', mark = '', units = units, bytes = bytes, shown = shown, parts = parts, ending = 0 })
  end
  if end_frame ~= '' then end_stream(channel, log, client_msg_no, { frame = end_frame, crc = end_crc, ending = CLOSED }) end
  return with_frames(channel, appended_reply(log, epoch, number))
end

local function begin_streams()
  listed_streams, open_heads, changed_heads, refusals = {}, {}, {}, {}
  dedupe_ttl = nil -- the window may have changed since the last call
end

local function write_pubs()
  for _, head in ipairs(changed_heads) do write_pub(head) end
end

-- Updates `activeStreams`. Must be called after `end_logs`. If the topics of a stream are in other
-- slots, the stream stays in `activeStreams` after its end until the caller has published the end.
local function end_streams()
  for _, log in ipairs(listed_streams) do
    local streams = log.base .. 'activeStreams'
    if log.is_changed and log.ending > 0 and not log.is_apart then
      call('ZREM', streams, log.name)
    elseif log.is_changed then
      call('ZADD', streams, int(now), log.name)
    end
  end
end
