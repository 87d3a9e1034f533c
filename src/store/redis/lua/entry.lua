-- Reading the log's entries: their place and fields, and what a message's record says without being
-- decoded as a whole (`wire.ts` has its fields). place (as the log has it), seq, id, record,
-- counted (what counts as unread through it), stream (clientMsgNo of the stream it is, or nil),
-- expires (Unix ms or nil).
local function log_entry(raw)
  local field = {}
  for at = 1, #raw[2], 2 do field[raw[2][at]] = raw[2][at + 1] end
  local seq, id = string.match(raw[1], '^(%d+)-(%d+)$')
  return {
    place = raw[1],
    seq = tonumber(seq),
    id = tonumber(id),
    record = field.r,
    counted = tonumber(field.c or seq),
    stream = field.s,
    expires = tonumber(field.x),
  }
end

-- The clientMsgNo, Unix ms of the acceptance and flags of an entry's record: an array with one byte
-- in front, then version, type, id, fromUid and these. Of a record that cannot be read: '', the
-- time in the message's id, 0.
local function record_facts(entry)
  local is_read, _, _, _, _, _, no, at, flags = pcall(cmsgpack.unpack_limit, entry.record, 7, 1)
  if is_read and type(no) == 'string' and type(at) == 'number' and type(flags) == 'number' then return no, at, flags end
  return '', EPOCH + math.floor(entry.id / 4096), 0
end

-- Unix ms of its acceptance.
local function accepted_at(entry)
  local _, at = record_facts(entry)
  return at
end

-- Bytes of the payload and of what may follow it: what the ten fields before it and the head of a
-- binary (2, 3 or 5 bytes) leave. All bytes of a record that cannot be read.
local function payload_bytes(record)
  local is_read, behind = pcall(cmsgpack.unpack_limit, record, 10, 1)
  if not is_read or behind < 0 then return #record end
  local heads = { [0xc4] = 2, [0xc5] = 3, [0xc6] = 5 }
  return #record - behind - (heads[string.byte(record, behind + 1)] or 0)
end
