-- A stream as reads show it, and its end as data: for every step that reads or reclaims messages.
-- `steps/stream-record.ts` reads what these return. Of one stream, behind the name `<channel
-- key>\n<clientMsgNo>`, all in the slot of the channel's head:
--   stream         HASH   h (what the record of each of its events begins with), i messageId, q
--     messageSeq, t Unix ms of its start, n index of the
--                         next event, l UTF-16 units of the text, b bytes counted against its
--                           bound, a Unix ms of its last event, e state (place in
--                         STREAM_STATES), w 1: a viewer stopped it, sd and ed: data of start and
--                           end, f the frame of its last event where its
--                         topics are out of reach
--   streamText     STRING
--   streamOffsets  STRING u32 big-endian for each event: units of text before it
--   streamNotes    LIST   msgpack [index, textOffset, eventId, type, data, timestampMs] of each
--     tool-call event
--   streamEventIds SET    of the producer; ends by itself when no retry can come any more
local STREAM_ACTIVE = 0

-- The keys of a stream by its channel's head.
local function stream_keys(head, no)
  local bucket, key = string.match(head, '^([^{]*{c%d+}:)head:(.*)$')
  local name = key .. '\n' .. no
  return {
    stream = bucket .. 'stream:' .. name,
    text = bucket .. 'streamText:' .. name,
    offsets = bucket .. 'streamOffsets:' .. name,
    notes = bucket .. 'streamNotes:' .. name,
    event_ids = bucket .. 'streamEventIds:' .. name,
    active = bucket .. 'activeStream:' .. key,
    streams = bucket .. 'activeStreams',
    name = name,
  }
end

-- No two states of a stream have the same one, also where one of them was lost in a fail-over.
local function stream_version(id, next_index, last_ms, bytes)
  return id .. ':' .. next_index .. ':' .. last_ms .. ':' .. bytes
end

-- {version, h, messageId, messageSeq, state, nextIndex, startData, endData or false, text, notes};
-- false: there is no such stream. Where its version is `known` only {version}.
local function stream_snapshot(head, no, known)
  local keys = stream_keys(head, no)
  local s = redis.call('HMGET', keys.stream, 'h', 'i', 'q', 'e', 'n', 'sd', 'ed', 'a', 'b')
  if not s[1] then return false end
  local version = stream_version(s[2], s[5], s[8], s[9])
  if version == known then return { version } end
  return {
    version, s[1], s[2], s[3], s[4], s[5], s[6], s[7],
    redis.call('GET', keys.text) or '', redis.call('LRANGE', keys.notes, 0, -1),
  }
end

-- Bytes of content a stream's message holds with all that its stream carries, about; 0: there is no
-- such stream.
local function stream_bytes(head, no)
  local bytes = redis.call('HGET', stream_keys(head, no).stream, 'b')
  return bytes and tonumber(bytes) + 25 or 0 -- what is around the text in a payload
end

-- Reclaims a stream whose message leaves the log. False: it is active, so that its message and all
-- behind it are to stay for now.
local function forget_stream(head, no)
  local keys = stream_keys(head, no)
  if tonumber(redis.call('HGET', keys.stream, 'e')) == STREAM_ACTIVE then return false end
  redis.call('UNLINK', keys.stream, keys.text, keys.offsets, keys.notes, keys.event_ids)
  redis.call('ZREM', keys.streams, keys.name)
  return true
end
