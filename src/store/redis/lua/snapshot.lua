-- Reads and removes streams. Placed in front of the scripts that read or remove streams. The
-- content of a stream is its log (`library/logs.lua` describes the keys). `steps/stream-record.ts`
-- decodes the replies.
local MAX_POSITION = 9007199254740991

-- Returns the names of the keys of a stream's log, and of the channel's key `endedStreams`.
local function stream_keys(head, client_msg_no)
  local bucket, key = string.match(head, '^([^{]*{c%d+}:)head:(.*)$')
  local name = key .. '\n' .. client_msg_no
  return {
    bucket = bucket, name = name,
    head = bucket .. 'logHead:' .. name,
    frames = bucket .. 'logFrames:' .. name,
    ends = bucket .. 'endedStreams:' .. key,
  }
end

-- Returns frames of a log, and the position of the first frame. The frames start at `position` if
-- the four bytes before it equal `check`, else at the beginning of the log.
local function frames_after(key, tail, position, check)
  if position > 4 and position <= tail then
    local frames = redis.call('GETRANGE', key, int(position - 4), int(tail - 1))
    if string.sub(frames, 1, 4) == check then return string.sub(frames, 5), position end
  end
  if tail == 0 then return '', 0 end
  return redis.call('GETRANGE', key, '0', int(tail - 1)), 0
end

-- Returns the position after the frames that viewers are shown. If viewers are not shown all
-- frames, also returns the index of the first event that they are not shown, and the position
-- before the last frame of an ended stream. `view` is the field `v` of the head, false if the head
-- has no such field.
local function shown_part(view, tail)
  if not view then return tail, false end
  local cut_index, cut_at, end_at = struct.unpack('>ddd', view)
  if cut_index < 0 then return tail, false end
  return cut_at, cut_index, end_at
end

-- Returns false if there is no such stream, else a list:
--   1  fields h, h2 and h3 of the head of its log together
--   2  field m
--   3  incarnation
--   4  index of its ending in LOG_ENDINGS, false while it is active
--   5  position of the first frame in 6
--   6  frames, without those that viewers are not shown
--   7  field v of the head, false if it has none
--   8  number of records of the log
--   9  last frame of an ended stream, if viewers are not shown all frames, else ''
-- `known` is nil or false, or a list that describes the frames that the caller already has:
-- incarnation, position after them, and their last four bytes.
local function stream_snapshot(head, client_msg_no, known)
  local keys = stream_keys(head, client_msg_no)
  local fields = redis.call('HMGET', keys.head, 'h', 'm', 'i', 'c', 'n', 'g', 'v', 'h2', 'h3')
  if not fields[1] or fields[6] then return false end
  local position, check = MAX_POSITION, ''
  if known and known[1] == fields[3] then position, check = tonumber(known[2]), known[3] end
  local tail, _, records = struct.unpack('>dI4I4', fields[5])
  local shown, cut_index, end_at = shown_part(fields[7], tail)
  local last = cut_index and fields[4] and redis.call('GETRANGE', keys.frames, int(end_at), int(tail - 1)) or ''
  local frames, from = frames_after(keys.frames, shown, position, check)
  local event_head = fields[1] .. (fields[8] or '') .. (fields[9] or '')
  return { event_head, fields[2], fields[3], fields[4], int(from), frames, fields[7], int(records), last }
end

-- Returns false if there is no such stream, else a list:
--   1  clientMsgNo
--   2  number of records of the log
--   3  length of the text that viewers are shown, in UTF-16 code units. Not used if viewers are not
--      shown all of it
local function stream_tail(head, client_msg_no)
  local fields = redis.call('HMGET', stream_keys(head, client_msg_no).head, 'n', 'l', 'g')
  if not fields[2] or fields[3] then return false end
  local _, _, records = struct.unpack('>dI4I4', fields[1])
  return { client_msg_no, records, (struct.unpack('>I4', fields[2])) }
end

-- Returns the number of a stream's bytes that count against a limit on content, and the number of
-- bytes in the frames that viewers are shown.
local function stream_bytes(head, client_msg_no)
  local fields = redis.call('HMGET', stream_keys(head, client_msg_no).head, 'l', 'n', 'v')
  if not fields[1] then return 0, 0 end
  local _, bytes = struct.unpack('>I4I4', fields[1])
  return bytes + 2, (shown_part(fields[3], struct.unpack('>d', fields[2])))
end

-- Deletes the log of a stream. While the log has forks, only marks it as deleted. The caller then
-- removes the stream's message from the channel. If the stream is active, returns false and changes
-- nothing. In that case, the caller must keep the message.
local function forget_stream(head, client_msg_no)
  local keys = stream_keys(head, client_msg_no)
  local bucket, name = keys.bucket, keys.name
  local fields = redis.call('HMGET', keys.head, 'h', 'c', 'm')
  if not fields[1] then return true end
  if not fields[2] then return false end
  local _, seq = struct.unpack('>dd', fields[3])
  redis.call('ZREM', keys.ends, int(seq) .. ':' .. client_msg_no)
  redis.call('UNLINK', bucket .. 'logProducers:' .. name, bucket .. 'logEventIds:' .. name)
  redis.call('ZREM', bucket .. 'activeStreams', name)
  if redis.call('EXISTS', bucket .. 'logForks:' .. name) == 1 then
    redis.call('HSET', keys.head, 'g', 1)
  else
    redis.call('UNLINK', keys.head, keys.frames)
  end
  return true
end
