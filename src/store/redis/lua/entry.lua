-- Reading the log's entries: the fields by name, and what a message's record says without being decoded as a whole (`wire.ts` has its fields).
-- seq, id, record, counted (what counts as unread through it), stream (clientMsgNo of the stream it is, or nil), expires (Unix ms or nil).
local function log_entry(raw)
  local field = {}
  for at = 1, #raw[2], 2 do field[raw[2][at]] = raw[2][at + 1] end
  return {
    seq = tonumber(string.match(raw[1], '^%d+')),
    id = field.i,
    record = field.r,
    counted = tonumber(field.c),
    stream = field.s,
    expires = tonumber(field.x),
  }
end

-- Unix ms of its acceptance. The record is an array with one byte in front; the fields behind it are version, type, id, fromUid, clientMsgNo, time.
local function accepted_at(record)
  local _, _, _, _, _, _, at = cmsgpack.unpack_limit(record, 6, 1)
  return at
end

-- Bytes of the payload: what the ten fields before it and the head of a binary (2, 3 or 5 bytes) leave.
local function payload_bytes(record)
  local behind = cmsgpack.unpack_limit(record, 10, 1)
  local heads = { [0xc4] = 2, [0xc5] = 3, [0xc6] = 5 }
  return #record - behind - (heads[string.byte(record, behind + 1)] or 0)
end
