-- Functions shared by the scripts that change streams. Placed after `snapshot.lua`.
--
-- Context of a script (`c`):
--   head
--   channel   channel key
--   now       Unix ms
--   indexes   `streams` of the users of a personal channel, empty if they are not in reach
--   topics    index in ARGV of the first topic. There is none if the caller publishes to the users.
--   frames    publications for a caller that publishes to the users, nil if there are none
--   ended     member of `activeStreams` that the caller must remove, nil if there is none
--
-- Reply of each script:
--   1  verdict
--   2  state of the stream (index in STREAM_STATES), -1 if there is none
--   then, only if the caller publishes to the users and there are publications
--   3  member of `activeStreams` of a stream that ended, '' if there is none
--   4… publications, in order
local STREAM_CLOSED, STREAM_CANCELLED, STREAM_INTERRUPTED = 1, 2, 3
local STREAM_END = '___TextMessageEnd'

-- Reads a stream that is about to be changed, nil if there is no such stream. Accesses every key of
-- an active stream, because the later commands do not declare these keys: this is the only point at
-- which Redis can report, before anything is written, that some of them have moved to another
-- server (slot migration).
local function load_stream(c, no)
  local keys = stream_keys(c.head, no)
  local s = redis.call('HMGET', keys.stream, 'h', 'q', 'n', 'l', 'b', 'e', 'w')
  if not s[1] then return nil end
  if tonumber(s[6]) == STREAM_ACTIVE then
    redis.call('EXISTS', keys.stream, keys.text, keys.offsets, keys.notes, keys.event_ids, keys.active, keys.streams)
  end
  return {
    keys = keys, no = no, head = s[1], seq = tonumber(s[2]), next = tonumber(s[3]), units = tonumber(s[4]),
    bytes = tonumber(s[5]), state = tonumber(s[6]), stopped = s[7] == '1',
  }
end

-- Publishes a frame on the topics, or adds it to the reply if the caller publishes.
local function publish_frame(c, frame)
  if ARGV[c.topics] then
    publish_to_topics(c.topics, frame)
  else
    c.frames = c.frames or {}
    c.frames[#c.frames + 1] = frame
  end
end

-- Adds an event to a stream and publishes it. Fields of `e`:
--   id     '' if there is none
--   tail   tail of its record
--   data
--   units  UTF-16 units of data
--   bytes  bytes that it counts
--   kind   s start, c content, n note (a tool call), e end
--   state  state of the stream after the event
local function add_event(c, s, e)
  local index, keys = s.next, s.keys
  local id = cmsgpack.pack(e.id ~= '' and e.id or int(index))
  local pub = redis.call('HINCRBY', c.head, 'pub', 1)
  local frame = event_frame(pub, s.seq, index, s.units, e.state, s.head .. id .. e.tail)
  redis.call('APPEND', keys.offsets, struct.pack('>I4', s.units))
  if e.kind == 'c' then
    redis.call('APPEND', keys.text, e.data)
    s.units = s.units + e.units
  elseif e.kind == 'n' then
    redis.call('RPUSH', keys.notes, '\150' .. cmsgpack.pack(index) .. cmsgpack.pack(s.units) .. id .. e.tail)
  elseif e.kind == 'e' then
    redis.call('HSET', keys.stream, 'ed', e.data)
  end
  if e.id ~= '' then redis.call('SADD', keys.event_ids, e.id) end
  s.next, s.bytes, s.state = index + 1, s.bytes + e.bytes, e.state
  redis.call('HSET', keys.stream, 'n', int(s.next), 'l', int(s.units), 'b', int(s.bytes), 'e', s.state, 'a', int(c.now))
  redis.call('ZADD', keys.streams, int(c.now), keys.name)
  if not ARGV[c.topics] then redis.call('HSET', keys.stream, 'f', frame) end
  publish_frame(c, frame)
end

-- Cleans up after the last event of a stream. `ids_ms` is the time for which a retry may arrive.
local function close_stream(c, s, ids_ms)
  redis.call('DEL', s.keys.active)
  for _, index in ipairs(c.indexes) do redis.call('SREM', index, c.channel) end
  redis.call('PEXPIRE', s.keys.event_ids, int(ids_ms))
  if ARGV[c.topics] then
    redis.call('ZREM', s.keys.streams, s.keys.name)
  else
    c.ended = s.keys.name -- stays in `activeStreams` until its users have been notified
  end
end

-- Ends an active stream that its producer did not end. Fields of `how`:
--   state    final state
--   stopped  true if a viewer cancelled it
--   ids_ms   time for which a retry may arrive
local function end_stream(c, s, how)
  add_event(c, s, {
    id = '', kind = 'e', data = '', units = 0, bytes = 1, state = how.state,
    tail = cmsgpack.pack(STREAM_END) .. cmsgpack.pack('') .. cmsgpack.pack(c.now),
  })
  if how.stopped then
    s.stopped = true
    redis.call('HSET', s.keys.stream, 'w', '1')
  end
  close_stream(c, s, how.ids_ms)
end

-- Publishes the last event of a stream again, if the caller publishes to the users: it may have
-- failed to do so the first time.
local function publish_again(c, s)
  if ARGV[c.topics] then return end
  local frame = redis.call('HGET', s.keys.stream, 'f')
  if not frame then return end
  publish_frame(c, frame)
  if s.state ~= STREAM_ACTIVE then c.ended = s.keys.name end
end

-- Returns the reply of the script.
local function step_reply(c, verdict, state)
  local reply = { verdict, state or -1 }
  if c.frames then
    reply[3] = c.ended or ''
    for _, frame in ipairs(c.frames) do reply[#reply + 1] = frame end
  end
  return reply
end

-- Returns the reply to an event for a stream that has ended. An event that is in the stream already
-- is a retry and is done.
local function late_reply(c, s, kind, id)
  if kind == 's' then return step_reply(c, 'closed', s.state) end
  if kind == 'e' or (id ~= '' and redis.call('SISMEMBER', s.keys.event_ids, id) == 1) then
    publish_again(c, s)
    return step_reply(c, 'done', s.state)
  end
  if s.stopped then return step_reply(c, 'stopped', s.state) end
  return step_reply(c, kind == 'c' and 'closed' or 'missing', s.state)
end
