-- Reads and removes streams. Placed in front of the scripts that read, change or remove streams.
-- `steps/stream-record.ts` decodes the snapshots.
--
-- Keys of a stream, in the slot of its channel's head. Their names end with `<channel
-- key>\n<clientMsgNo>`.
--
--   stream          HASH    h   beginning of the record of each of its events
--                           i   messageId
--                           q   messageSeq
--                           t   Unix ms of its start
--                           n   index of the next event
--                           l   length of the text in UTF-16 units
--                           b   bytes that count against the limit of a stream
--                           a   Unix ms of its last event
--                           e   state (index in STREAM_STATES)
--                           w   1 if a viewer stopped it, else absent
--                           sd  data of the start
--                           ed  data of the end, absent while it is active
--                           si  id of the start, absent if the producer chose none
--                           ei  id of the end, absent if the producer chose none
--                           f   frame of its last event, only if its topics are in other slots
--   streamText      STRING  the text, absent if it is empty
--   streamOffsets   STRING  u32 big-endian for each event: UTF-16 units of text before it
--   streamNotes     LIST    MessagePack list [index, textOffset, eventId, type, data, timestampMs]
--                           for each tool call and custom event
--   streamEventIds  HASH    for each event id of the producer, its mark (`store/event-ids.ts`), ''
--                           if different events share it; kept until no retry can arrive any
--                           more
--
-- `ends` is the key `endedStreams` of the channel.
local STREAM_ACTIVE = 0

local function stream_keys(head, client_msg_no)
  local bucket, key = string.match(head, '^([^{]*{c%d+}:)head:(.*)$')
  local name = key .. '\n' .. client_msg_no
  return {
    stream = bucket .. 'stream:' .. name,
    text = bucket .. 'streamText:' .. name,
    offsets = bucket .. 'streamOffsets:' .. name,
    notes = bucket .. 'streamNotes:' .. name,
    event_ids = bucket .. 'streamEventIds:' .. name,
    active = bucket .. 'activeStream:' .. key,
    streams = bucket .. 'activeStreams',
    ends = bucket .. 'endedStreams:' .. key,
    name = name,
  }
end

-- Returns the version of a stream's state. It contains time and size as well as the index, so that
-- the version also changes if a new event replaces one that a fail-over has lost.
local function stream_version(id, next_index, last_ms, bytes)
  return id .. ':' .. next_index .. ':' .. last_ms .. ':' .. bytes
end

-- Returns false if there is no such stream, {version} if its version is `known_version`, else:
--   1  version
--   2  beginning of the record of each event
--   3  messageId
--   4  messageSeq
--   5  state
--   6  index of the next event
--   7  data of the start
--   8  data of the end, or false
--   9  text
--   10 notes
--   11 id of the start, false if the producer chose none
--   12 id of the end, false if the producer chose none
local function stream_snapshot(head, client_msg_no, known_version)
  local keys = stream_keys(head, client_msg_no)
  local fields = redis.call('HMGET', keys.stream, 'h', 'i', 'q', 'e', 'n', 'sd', 'ed', 'a', 'b', 'si', 'ei')
  if not fields[1] then return false end
  local version = stream_version(fields[2], fields[5], fields[8], fields[9])
  if version == known_version then return { version } end
  return {
    version, fields[1], fields[2], fields[3], fields[4], fields[5], fields[6], fields[7],
    redis.call('GET', keys.text) or '', redis.call('LRANGE', keys.notes, 0, -1),
    fields[10], fields[11],
  }
end

local function stream_bytes(head, client_msg_no)
  local bytes = redis.call('HGET', stream_keys(head, client_msg_no).stream, 'b')
  return bytes and tonumber(bytes) + 2 or 0
end

-- Deletes a stream, whose message the caller then removes from the log. Returns false and changes
-- nothing if the stream is active: the caller must then keep its message and all later ones.
local function forget_stream(head, client_msg_no)
  local keys = stream_keys(head, client_msg_no)
  local fields = redis.call('HMGET', keys.stream, 'e', 'q')
  if tonumber(fields[1]) == STREAM_ACTIVE then return false end
  if fields[2] then redis.call('ZREM', keys.ends, fields[2] .. ':' .. client_msg_no) end
  redis.call('UNLINK', keys.stream, keys.text, keys.offsets, keys.notes, keys.event_ids)
  redis.call('ZREM', keys.streams, keys.name)
  return true
end
