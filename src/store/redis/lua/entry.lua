-- Decodes log entries. Also decodes some fields of a message's record without decoding the whole
-- record (`encodeRecord` of `wire.ts` defines the fields).

-- Decodes an entry of an XRANGE reply. Returns a table:
--   entry_id  `<seq>-<messageId>`
--   counted   number of messages through this seq that have a red dot and do not expire
--   stream    clientMsgNo of the stream, nil if the message does not belong to a stream
--   expires   Unix ms, nil if the message does not expire
--   time      Unix ms at which the message was sent, nil if it was not imported
local function log_entry(raw_entry)
  local fields = {}
  for at = 1, #raw_entry[2], 2 do fields[raw_entry[2][at]] = raw_entry[2][at + 1] end
  local seq, id = string.match(raw_entry[1], '^(%d+)-(%d+)$')
  return {
    entry_id = raw_entry[1],
    seq = tonumber(seq),
    id = tonumber(id),
    record = fields.r,
    counted = tonumber(fields.c or seq),
    stream = fields.s,
    expires = tonumber(fields.x),
    time = tonumber(fields.t),
  }
end

-- Returns the Unix ms from which the age of a message is counted.
local function entry_ms(entry) return entry.time or message_ms(entry.id) end

-- Returns the clientMsgNo, the Unix ms of acceptance and the flags of a message. If the record is
-- unreadable, returns '', the time in the message id, and 0.
local function record_facts(entry)
  local is_read, _, _, _, _, _, client_msg_no, accepted_ms, flags = pcall(cmsgpack.unpack_limit, entry.record, 7, 1)
  if is_read and type(client_msg_no) == 'string' and type(accepted_ms) == 'number' and type(flags) == 'number' then return client_msg_no, accepted_ms, flags end
  return '', message_ms(entry.id), 0
end

-- Returns the number of payload bytes, or the size of the whole record if it is unreadable.
local function payload_bytes(record)
  local is_read, payload_at = pcall(cmsgpack.unpack_limit, record, 10, 1)
  if not is_read or payload_at < 0 then return #record end
  local heads = { [0xc4] = 2, [0xc5] = 3, [0xc6] = 5 }
  return #record - payload_at - (heads[string.byte(record, payload_at + 1)] or 0)
end
