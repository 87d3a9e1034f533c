-- Functions shared by the scripts that change streams. Placed after `snapshot.lua`.
--
-- Context of a script (`call`):
--   head
--   channel   channel key
--   now       Unix ms
--   indexes   keys `streams` of the users of a personal channel; empty for a group, or if the users
--             are in other slots
--   topics    index in ARGV of the first topic. ARGV has no topics if the users are in other slots:
--             the caller must then publish to the users.
--   frames    publications that the caller must publish, nil if there are none
--   ended     member of `activeStreams` that the caller must remove after it has added the end to
--             `endedStreams` of the users, nil if there is none
--   ended_seq seq of the stream `ended`
--
-- Reply of each script:
--   1  verdict
--   2  state of the stream (index in STREAM_STATES), -1 if there is none
--   then, only if there are publications that the caller must publish
--   3  member of `activeStreams` of a stream that ended, '' if there is none
--   4  seq of that stream, 0 if there is none
--   5… publications, in order
local STREAM_CLOSED, STREAM_CANCELLED, STREAM_INTERRUPTED = 1, 2, 3
local MAX_ENDS = 200
local STREAM_END = '___TextMessageEnd'

-- Reads a stream. Returns nil if there is none. Accesses every key of an active stream, because the
-- scripts do not declare these keys: Redis then reports a moved key before anything is written.
local function load_stream(call, client_msg_no)
  local keys = stream_keys(call.head, client_msg_no)
  local fields = redis.call('HMGET', keys.stream, 'h', 'q', 'n', 'l', 'b', 'e', 'w')
  if not fields[1] then return nil end
  if tonumber(fields[6]) == STREAM_ACTIVE then
    redis.call('EXISTS', keys.stream, keys.text, keys.offsets, keys.notes, keys.event_ids, keys.active, keys.streams, keys.ends)
  end
  return {
    keys = keys, no = client_msg_no, head = fields[1], seq = tonumber(fields[2]), next = tonumber(fields[3]), units = tonumber(fields[4]),
    bytes = tonumber(fields[5]), state = tonumber(fields[6]), stopped = fields[7] == '1',
  }
end

local function publish_frame(call, frame)
  if ARGV[call.topics] then
    publish_to_topics(call.topics, frame)
  else
    call.frames = call.frames or {}
    call.frames[#call.frames + 1] = frame
  end
end

-- Applies the rule of `isRetry` in `store/event-ids.ts`. A mark has 12 bytes, followed by the
-- timestamp if the producer set one.
local function is_retry(stream, id, mark)
  local remembered = mark ~= '' and redis.call('HGET', stream.keys.event_ids, id)
  if not remembered or remembered == '' then return false end
  if #remembered > 12 and #mark > 12 then return remembered == mark end
  return string.sub(remembered, 1, 12) == string.sub(mark, 1, 12)
end

-- Adds an event, which is not a retry, to a stream and publishes it. Fields of `event`:
--   id     '' if there is none
--   mark   what is remembered under its id, '' if nothing is
--   tail   part of its record after the event id
--   units  UTF-16 units of data
--   bytes  bytes that count against the limit of the stream
--   kind   s start, c content, n note (a tool call), e end
--   state  state of the stream after the event
local function add_event(call, stream, event)
  local index, keys = stream.next, stream.keys
  local id = cmsgpack.pack(event.id)
  local pub = redis.call('HINCRBY', call.head, 'pub', 1)
  local frame = event_frame(pub, stream.seq, index, stream.units, event.state, stream.head .. id .. event.tail)
  redis.call('APPEND', keys.offsets, struct.pack('>I4', stream.units))
  if event.kind == 'c' then
    redis.call('APPEND', keys.text, event.data)
    stream.units = stream.units + event.units
  elseif event.kind == 'n' then
    redis.call('RPUSH', keys.notes, '\150' .. cmsgpack.pack(index) .. cmsgpack.pack(stream.units) .. (event.id ~= '' and id or cmsgpack.pack(int(index))) .. event.tail)
  elseif event.kind == 'e' then
    redis.call('HSET', keys.stream, 'ed', event.data)
  end
  if event.id ~= '' and (event.kind == 's' or event.kind == 'e') then
    redis.call('HSET', keys.stream, event.kind .. 'i', event.id)
  end
  if event.mark ~= '' and redis.call('HSETNX', keys.event_ids, event.id, event.mark) == 0 then
    redis.call('HSET', keys.event_ids, event.id, '') -- different events share the id
  end
  stream.next, stream.bytes, stream.state = index + 1, stream.bytes + event.bytes, event.state
  redis.call('HSET', keys.stream, 'n', int(stream.next), 'l', int(stream.units), 'b', int(stream.bytes), 'e', stream.state, 'a', int(call.now))
  redis.call('ZADD', keys.streams, int(call.now), keys.name)
  if not ARGV[call.topics] then redis.call('HSET', keys.stream, 'f', frame) end
  publish_frame(call, frame)
end

-- Adds the end of a stream to a key `endedStreams`, from which clients read the ends that they
-- missed.
local function remember_end(ends, stream, name, ended_ms)
  redis.call('ZADD', ends, int(ended_ms), int(stream.seq) .. ':' .. name)
  redis.call('ZREMRANGEBYRANK', ends, 0, -1 - MAX_ENDS)
end

-- Marks a stream as ended. Its event ids are kept for another `ids_ms` ms, because retries may
-- arrive.
local function close_stream(call, stream, ids_ms)
  redis.call('DEL', stream.keys.active)
  -- Not lower than the time in the message id, even if the clock was set back since.
  local ended_ms = math.max(call.now, message_ms(tonumber(redis.call('HGET', stream.keys.stream, 'i'))))
  if string.sub(call.channel, 1, 2) == '2:' then remember_end(stream.keys.ends, stream, stream.no, ended_ms) end
  for _, index in ipairs(call.indexes) do
    redis.call('SREM', index, call.channel)
    remember_end(string.sub(index, 1, -8) .. 'endedStreams', stream, stream.keys.name, ended_ms)
  end
  redis.call('PEXPIRE', stream.keys.event_ids, int(ids_ms))
  if ARGV[call.topics] then
    redis.call('ZREM', stream.keys.streams, stream.keys.name)
  else
    -- The caller removes the stream from `activeStreams` after it has notified the users.
    call.ended, call.ended_seq = stream.keys.name, stream.seq
  end
end

-- Ends an active stream that its producer did not end. Fields of `ending`:
--   stopped  true if a viewer cancelled it
--   ids_ms   time in ms for which the event ids are kept
local function end_stream(call, stream, ending)
  add_event(call, stream, {
    id = '', mark = '', kind = 'e', data = '', units = 0, bytes = 1, state = ending.state,
    tail = cmsgpack.pack(STREAM_END) .. cmsgpack.pack('') .. cmsgpack.pack(call.now),
  })
  if ending.stopped then
    stream.stopped = true
    redis.call('HSET', stream.keys.stream, 'w', '1')
  end
  close_stream(call, stream, ending.ids_ms)
end

-- Adds the last event to the reply once more, because a caller that publishes to the users itself
-- may have failed to publish it.
local function publish_again(call, stream)
  if ARGV[call.topics] then return end
  local frame = redis.call('HGET', stream.keys.stream, 'f')
  if not frame then return end
  publish_frame(call, frame)
  if stream.state ~= STREAM_ACTIVE then call.ended, call.ended_seq = stream.keys.name, stream.seq end
end

local function step_reply(call, verdict, state)
  local reply = { verdict, state or -1 }
  if call.frames then
    reply[3], reply[4] = call.ended or '', call.ended_seq or 0
    for _, frame in ipairs(call.frames) do reply[#reply + 1] = frame end
  end
  return reply
end

-- Returns the reply to an event of a stream that has ended. The verdict is `done` for an end event
-- and for a retry of an event that is already in the stream.
local function late_reply(call, stream, kind, id, mark)
  if kind == 's' then return step_reply(call, 'closed', stream.state) end
  if kind == 'e' or is_retry(stream, id, mark) then
    publish_again(call, stream)
    return step_reply(call, 'done', stream.state)
  end
  if stream.stopped then return step_reply(call, 'stopped', stream.state) end
  return step_reply(call, kind == 'c' and 'closed' or 'missing', stream.state)
end
