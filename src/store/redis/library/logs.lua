-- Operations on logs. `broker/log-ports.ts` specifies their behaviour, and `broker/log-frame.ts`
-- the format of frames.
--
-- Keys of a log, in the slot of its bucket. Their names end with the name of the log.
--
--   logHead       HASH    i  incarnation
--                         t  content type
--                         n  tail: position (f64), check (u32), records (u32)
--                         c  index of the ending in LOG_ENDINGS, absent while the log is open
--                         w  time to live in seconds, absent if the log has none
--                         x  Unix ms when the log expires, absent if it does not
--                         u  Unix ms of the last recorded use (see `use_log`), absent without a
--                            time to live
--                         s  `order` of the last append that had an `order` (see `LogAppend`),
--                            absent if no append had one
--                         g  1 if the log was deleted while forks needed it, else absent
--                         b  start of the log's own frames, encoded like n; absent if not a fork
--                         o  settings of the fork (`originText` of `log-head.ts`), opaque to this
--                            library; absent if not a fork
--                         r  reference to the source, absent if not a fork
--                         The log of a channel's stream also has these fields:
--                         h  channel and names of the stream (`encodeStreamHead` of `wire.ts`):
--                            the first 64 bytes. h2: the next 64 bytes, h3: the remaining bytes,
--                            absent if there are none
--                         m  the stream's message: messageId, messageSeq (f64 each)
--                         l  length in UTF-16 code units of the text that viewers are shown (u32),
--                            bytes that count against the limit of a stream (u32), Unix ms of the
--                            last event (f64)
--                         e  Unix ms when the stream's message expires, absent if it does not
--                         v  only if created through the Durable Streams protocol: index of the
--                            first event that viewers are not shown, or -1 if they see all (f64),
--                            position after the frame of that event (f64), position before the last
--                            frame of an ended stream (f64), `maxDataBytes` of `ViewLimits` (u32)
--                         f  frame that was published last, only if the topics of the stream's
--                            users are in other slots
--   logFrames     STRING  the log's own frames; bytes after the tail are not part of the log
--   logProducers  HASH    for each producer its epoch, last number and Unix ms of its last append
--                         (f64 each)
--   logForks      SET     references of the forks
--   logEventIds   HASH    for each event id that the producer of a stream chose, its mark
--                         (`store/event-ids.ts`), '' if different events share the id. The hash is
--                         kept until no retry can arrive any more. It has at most one field for
--                         each record of the log, so the limits of the log also limit its size
--
-- Keys of a bucket:
--
--   logExpiry      ZSET   name of each log that expires, scored by the Unix ms at which a sweep
--                         checks the log
--   logReferences  ZSET   references that may have no fork yet, scored by the Unix ms of creation
--   logReleases    SET    references of removed forks, until the sources have released them
--
-- A reference is a string that the node creates and that is opaque to this library. It names the
-- source and the fork (see `log-references.ts`).

local MISSING, DELETED = 1, 2 -- verdicts of several operations
local LOG_CREATED, LOG_EXISTS, LOG_FULL = 3, 4, 5 -- verdicts of a creation
-- Verdicts of an append
local LOG_APPENDED, LOG_REPEATED, LOG_CLOSED, LOG_OTHER_TYPE, LOG_STALE_EPOCH = 3, 4, 5, 6, 7
local LOG_BAD_START, LOG_GAP, LOG_OUT_OF_ORDER, LOG_BYTES, LOG_RECORDS, LOG_PRODUCERS = 8, 9, 10, 11, 12, 13
local LOG_DONE = 3 -- verdict of the other operations
local LOG_APPEND_EVENT, LOG_DELETE_EVENT = 1, 2 -- changes in a published frame
local LOG_FRAME = 9 -- kind of a published frame, see `redis/wire.ts`
local WIRE_VERSION = 2
local MAX_EVENT_BYTES = 4096
-- Size below which the frames of a log are copied when the log is closed. The memory of a larger
-- string exceeds its size by at most 1 MB.
local MAX_COPIED_BYTES = 2097152
local TRAILER_BYTES = 8

-- Maximum size of fields h and h2. Redis stores a hash in half the memory while no value has more
-- than 64 bytes (its default for `hash-max-listpack-value`). Field f, and an `event_head` of more
-- than 192 bytes, still make it use the larger form for as long as the log exists.
local MAX_SMALL_VALUE = 64

local open_logs -- logs that the call has opened, by the name of their head
local changed_logs -- list of the logs whose head must be written
local last_log -- log that was opened last
-- List of the publications of the call. Each element contains the arguments of `publish`. The
-- publications are sent after the logs are written, so that everything that is published is also
-- stored.
local publications

-- Returns the state of a log, even if the log does not exist. Fields that the operations of a call
-- use:
--   event_head        fields h, h2 and h3 together, false if the log is not that of a channel's
--                     stream
--   message_id, seq   field m
--   units, bytes, last  field l
--   is_limited        true if the stream was created through the Durable Streams protocol
--   cut_index, cut_at, end_at, max_data  field v
--   publication       field f, nil if it has not changed
--   unwritten         frames of events that `write_log` must still write
--   unwritten_at      offset of the first such frame
--   noted             hash fields that operations have stored before the frames are written: key,
--                     field and former value of each, false in place of the value of a new field
--   replies           indexes of the operations that changed the log
--   is_failed         true if the changes could not be written
--   is_new            true if the call has started the stream
--   message_expiry    Unix ms when the message of a new stream expires, 0 if it does not
--   is_apart          true if the topics of the stream's users are in other slots
local function load_log(base, name)
  local head = base .. 'logHead:' .. name
  local fields = call('HMGET', head, 'i', 't', 'n', 'c', 'w', 'x', 'u', 's', 'g', 'b', 'r', 'h', 'm', 'l', 'v', 'h2', 'h3')
  local log = {
    base = base, name = name, head = head, frames = base .. 'logFrames:' .. name,
    incarnation = tonumber(fields[1]), type = fields[2], position = 0, check = 0, records = 0,
    ending = tonumber(fields[4]) or 0, ttl = tonumber(fields[5]), expires = tonumber(fields[6]), used = tonumber(fields[7]),
    order = fields[8], is_deleted = fields[9] == '1', start = 0, reference = fields[11],
    is_changed = false, is_closing = false, is_used = false, has_order = false,
    event_head = fields[12] and fields[12] .. (fields[16] or '') .. (fields[17] or ''), message_id = 0, seq = 0, units = 0, bytes = 0, last = 0, unwritten = {}, unwritten_at = 0, replies = {},
    is_new = false, message_expiry = 0, is_apart = false, is_failed = false, publication = nil,
    is_limited = false, is_view_changed = false, cut_index = -1, cut_at = 0, end_at = 0, max_data = 0,
    noted = {},
  }
  if fields[3] then log.position, log.check, log.records = struct_unpack('>dI4I4', fields[3]) end
  if fields[10] then log.start = struct_unpack('>d', fields[10]) end
  if fields[12] then
    log.message_id, log.seq = struct_unpack('>dd', fields[13])
    log.units, log.bytes, log.last = struct_unpack('>I4I4d', fields[14])
  end
  if fields[15] then
    log.is_limited, log.cut_index, log.cut_at, log.end_at, log.max_data = true, struct_unpack('>dddI4', fields[15])
  end
  return log
end

-- Returns the state of a log, even if the log does not exist. On a Cluster, accesses the log's keys
-- first, so that Redis reports a moved key before the operation writes anything.
local function open_log(base, name)
  local head = base .. 'logHead:' .. name
  last_log = open_logs[head]
  if last_log then return last_log end
  if is_cluster then
    local keys = { head }
    for _, part in ipairs({ 'logFrames:', 'logProducers:', 'logForks:', 'logEventIds:' }) do keys[#keys + 1] = base .. part .. name end
    for _, part in ipairs({ 'logExpiry', 'logReferences', 'logReleases' }) do keys[#keys + 1] = base .. part end
    call('EXISTS', unpack(keys))
  end
  last_log = load_log(base, name)
  open_logs[head] = last_log
  return last_log
end

-- Forgets the state of a log after an operation on it failed, because the operation may have
-- changed this state in part. Keeps the state if `change_log` was called, because `end_logs` must
-- write it.
local function forget_failed_log()
  if last_log and not last_log.is_changed then open_logs[last_log.head] = nil end
end

-- A log with a time to live expires 1.25 times that time after the last recorded use, because
-- `use_log` does not record a use within the first quarter of that time.
local function is_expired(log)
  return log.ttl and now >= log.used + log.ttl * 1250 or log.expires and now >= log.expires
end

local function has_forks(log) return call('EXISTS', log.base .. 'logForks:' .. log.name) == 1 end

-- Returns MISSING or DELETED if the log cannot be used, else nil.
local function absence_of(log)
  if not log.incarnation then return MISSING end
  if log.is_deleted then return DELETED end
  if is_expired(log) then return has_forks(log) and DELETED or MISSING end
  return nil
end

-- Marks the log as changed by the current operation. `end_logs` writes it.
local function change_log(log)
  log.replies[#log.replies + 1] = reply_at
  if log.is_changed then return end
  log.is_changed = true
  changed_logs[#changed_logs + 1] = log
end

-- Records a use of the log if the stored last use is older than a quarter of the time to live.
local function use_log(log)
  if not log.ttl or now - log.used < log.ttl * 250 then return end
  log.used, log.is_used = now, true
  change_log(log)
end

local function tail_of(log) return struct_pack('>dI4I4', log.position, log.check, log.records) end

local function set_expiry(log)
  local at = log.ttl and log.used + log.ttl * 1250 or log.expires
  if at then call('ZADD', log.base .. 'logExpiry', int(at), log.name) end
end

-- Writes frames at an offset of a log. Overwrites bytes after the tail, which a failed call may
-- have left.
local function write_frames(log, position, frames) call('SETRANGE', log.frames, int(position - log.start), frames) end

-- Adds fields h, h2 and h3 to a list of fields and values.
local function add_event_head(fields, event_head)
  local first, second, rest = string.sub(event_head, 1, MAX_SMALL_VALUE), string.sub(event_head, MAX_SMALL_VALUE + 1, 2 * MAX_SMALL_VALUE), string.sub(event_head, 2 * MAX_SMALL_VALUE + 1)
  fields[#fields + 1], fields[#fields + 2] = 'h', first
  if second ~= '' then fields[#fields + 1], fields[#fields + 2] = 'h2', second end
  if rest ~= '' then fields[#fields + 1], fields[#fields + 2] = 'h3', rest end
end

local function write_head(log)
  local fields = { 'n', tail_of(log) }
  if log.is_closing then fields[3], fields[4] = 'c', log.ending end
  if log.is_used then fields[#fields + 1], fields[#fields + 2] = 'u', int(log.used) end
  if log.has_order then fields[#fields + 1], fields[#fields + 2] = 's', log.order end
  if log.event_head then fields[#fields + 1], fields[#fields + 2] = 'l', struct_pack('>I4I4d', log.units, log.bytes, log.last) end
  if log.is_limited and log.is_view_changed then fields[#fields + 1], fields[#fields + 2] = 'v', struct_pack('>dddI4', log.cut_index, log.cut_at, log.end_at, log.max_data) end
  if log.publication then fields[#fields + 1], fields[#fields + 2] = 'f', log.publication end
  if log.is_new then
    for _, text in ipairs({ 'i', int(log.incarnation), 't', log.type, 'm', struct_pack('>dd', log.message_id, log.seq) }) do fields[#fields + 1] = text end
    add_event_head(fields, log.event_head)
    if log.message_expiry > 0 then fields[#fields + 1], fields[#fields + 2] = 'e', int(log.message_expiry) end
  end
  call('HSET', log.head, unpack(fields))
end

-- Writes the frames of events that the operations of the call have collected. Then writes the head,
-- which determines the tail.
local function write_log(log)
  local frames = log.unwritten
  if frames[1] then
    -- `concat` would copy a single string.
    write_frames(log, log.unwritten_at, frames[2] and table.concat(frames) or frames[1])
    log.unwritten = {}
  end
  write_head(log)
end

-- Copies the frames of a closed log to save memory, because a string that has grown takes up to
-- twice its size.
local function shrink_frames(log)
  local size = log.position - log.start
  if size == 0 or size >= MAX_COPIED_BYTES then return end
  local copy = log.base .. 'logCopy:' .. log.name
  call('COPY', log.frames, copy, 'REPLACE')
  call('RENAME', copy, log.frames)
end

-- Publishes a frame at the end of the call. `log` is the log whose change the frame describes,
-- false if the frame describes no change of a log.
local function publish(log, topic, frame)
  publications[#publications + 1] = { log, topic, frame }
end

local function publish_log(log, change, position, check, frame)
  local shown = frame ~= '' and #frame <= MAX_EVENT_BYTES and frame or ''
  local event = struct_pack('>BBBBI4dI4dI4I2', WIRE_VERSION, LOG_FRAME, change, log.ending, log.incarnation, position, check, log.position, log.check, #log.name)
  publish(log, log.base .. 'logs' .. topic_end, event .. log.name .. shown)
end

-- Publishes an appended frame, and the offset at which it was appended.
local function publish_append(log, position, check, frame) publish_log(log, LOG_APPEND_EVENT, position, check, frame) end

-- Completes a frame that is appended at the end of a log: adds the last two fields, which `frame`
-- lacks. Returns the whole frame, and the check of the log after this frame.
local function seal_frame(log, frame, crc)
  local check = bit.bxor(bit.rol(log.position == 0 and log.incarnation or log.check, 5), crc)
  return frame .. struct_pack('<I4I4', log.records, check), check % 4294967296
end

local function move_tail(log, whole, check, records)
  log.position, log.check, log.records = log.position + #whole, check, log.records + records
end

-- Removes a log with its producers and the references of its forks. If the log is itself a fork,
-- its reference is stored until the source has released it. Returns that reference, '' if the log
-- is not a fork.
local function remove_log(log)
  call('UNLINK', log.head, log.frames, log.base .. 'logProducers:' .. log.name, log.base .. 'logForks:' .. log.name)
  call('ZREM', log.base .. 'logExpiry', log.name)
  open_logs[log.head] = nil
  log.is_changed = true -- so that `change_log` does not list the log, whose head is gone
  for at = #changed_logs, 1, -1 do
    if changed_logs[at] == log then table.remove(changed_logs, at) end
  end
  if not log.reference then return '' end
  call('SADD', log.base .. 'logReleases', log.reference)
  return log.reference
end

local function media_type(content_type)
  return string.lower(string.match(content_type, '^%s*([^;]-)%s*;') or string.match(content_type, '^%s*(.-)%s*$'))
end

-- Returns the fields of the log's head that nodes read. If the log has changed, writes it first.
local function head_fields(log)
  if log.is_changed then write_log(log) end
  return call('HMGET', log.head, 'i', 't', 'n', 'c', 'w', 'x', 'u', 'b', 'o', 'r')
end

-- Creates a log unless it exists.
--
-- Numbers  ttl f64 (s), expires f64 (Unix ms), incarnation u32, ending u8, start position f64,
--          start check u32, start records u32; frames u8. 0 stands for none.
--          for each frame: records u32, crc u32
-- Texts    base, name, content type, origin, reference ('' for none); then the frames
-- Reply    one of
--            DELETED
--            LOG_EXISTS, '', and the fields of the head
--            LOG_FULL, and 1 (bytes) or 2 (records)
--            LOG_CREATED, the reference of the expired fork that the new log replaces ('' if it
--            replaces no fork), and the fields of the head
local function log_create()
  local ttl, expires, incarnation, ending, start, check, records, count = take_numbers('>ddI4BdI4I4B')
  local base, name, content_type, origin, reference = take_texts(5)
  local frames = { take_texts(count) }
  local counts = {}
  for at = 1, count do counts[at] = { take_numbers('>I4I4') } end
  local log = open_log(base, name)
  local absence = absence_of(log)
  if absence == DELETED then return { DELETED } end
  if not absence then return { LOG_EXISTS, '', head_fields(log) } end
  local size, total = start, records
  for at = 1, count do size, total = size + #frames[at] + TRAILER_BYTES, total + counts[at][1] end
  if size > max_bytes then return { LOG_FULL, 1 } end
  if total > max_records then return { LOG_FULL, 2 } end
  local released = ''
  if log.incarnation then
    released = remove_log(log)
    log = open_log(base, name)
  end
  local fields = { 'i', int(incarnation), 't', content_type }
  local function add(field, value) fields[#fields + 1], fields[#fields + 2] = field, value end
  log.incarnation, log.type, log.position, log.check, log.records, log.start = incarnation, content_type, start, check, records, start
  if reference ~= '' then
    add('b', tail_of(log))
    add('o', origin)
    add('r', reference)
    log.reference = reference
  end
  if ttl > 0 then
    log.ttl, log.used = ttl, now
    add('w', int(ttl))
    add('u', int(now))
  end
  if expires > 0 then
    log.expires = expires
    add('x', int(expires))
  end
  for at = 1, count do
    local whole, check_after = seal_frame(log, frames[at], counts[at][2])
    write_frames(log, log.position, whole)
    move_tail(log, whole, check_after, counts[at][1])
  end
  if ending > 0 then
    log.ending = ending
    add('c', ending)
  end
  add('n', tail_of(log))
  set_expiry(log)
  call('HSET', log.head, unpack(fields))
  return { LOG_CREATED, released, head_fields(log) }
end

-- Returns two values: the verdict on a producer's number, and the number to report. Returns nil if
-- the producer may append.
--   stored  epoch, last number and time of the producer, false if the producer is unknown
local function producer_verdict(stored, epoch, number)
  if not stored then
    if number > 0 then return LOG_GAP, 0 end
    return nil
  end
  local stored_epoch, stored_number = struct_unpack('>dd', stored)
  if epoch < stored_epoch then return LOG_STALE_EPOCH, stored_epoch end
  if epoch > stored_epoch then
    if number > 0 then return LOG_BAD_START, 0 end
    return nil
  end
  if number <= stored_number then return LOG_REPEATED, stored_number end
  if number > stored_number + 1 then return LOG_GAP, stored_number + 1 end
  return nil
end

-- Returns the producer that a new producer replaces: the producer that has been silent longest, if
-- it has been silent for more than `window`. Returns false if there is room for another producer,
-- nil if no producer can be replaced.
local function silent_producer(key)
  if call('HLEN', key) < max_producers then return false end
  local producers, silent, since = call('HGETALL', key), nil, now - window
  for at = 1, #producers, 2 do
    local _, _, last = struct_unpack('>ddd', producers[at + 1])
    if last < since then silent, since = producers[at], last end
  end
  return silent
end

local function append_reply(log, verdict, epoch, number)
  return struct_pack('>BBdI4dd', verdict, log.ending, log.position, log.check, epoch, number)
end

-- Returns the reply to an append that was applied.
local function appended_reply(log, epoch, number) return append_reply(log, LOG_APPENDED, epoch, number) end

-- Returns the reply to an append to an open log that accepts no more records. `ending` is the
-- ending to report.
local function closed_reply(log, ending, epoch)
  return struct_pack('>BBdI4dd', LOG_CLOSED, ending, log.position, log.check, epoch, 0)
end

-- Returns true if `reply` answers a retry of an append that was applied before.
local function is_repeated(reply) return byte(reply) == LOG_REPEATED end

-- Returns LOG_BYTES or LOG_RECORDS if the log would exceed a limit with the frame, else nil.
-- `frame` lacks its last two fields. It is '' if there is no frame.
-- A log that exceeds a lowered limit can still be closed.
local function full_verdict(log, frame, records)
  if records == 0 then return nil end
  if log.position + #frame + TRAILER_BYTES > max_bytes then return LOG_BYTES end
  if log.records + records > max_records then return LOG_RECORDS end
  return nil
end

-- If the append must not be applied, returns the reply to it. Otherwise, returns nil and the
-- producer that the append replaces, false if the append replaces no producer. Sets `append.stored`
-- to the stored state of the producer, false if the producer is unknown, nil if the append names no
-- producer. Other fields of `append`:
--   records, frame          number of records, and the frame without its last two fields; 0 and ''
--                           if the append has no records
--   type                    content type, '' for none
--   producer, epoch, number  producer ('' for none), its epoch and its number
--   has_order, order         1 and the `order` of the append, 0 and '' if it has no `order`
local function append_refusal(log, append)
  local producers, stored, verdict, reported = log.base .. 'logProducers:' .. log.name, nil, nil, nil
  local producer, epoch, content_type = append.producer, append.epoch, append.type
  if producer ~= '' then
    stored = call('HGET', producers, producer)
    append.stored = stored
    verdict, reported = producer_verdict(stored, epoch, append.number)
  end
  if log.ending > 0 then
    local is_again = verdict == LOG_REPEATED or producer == '' and append.records == 0
    return append_reply(log, is_again and LOG_REPEATED or LOG_CLOSED, epoch, reported or 0)
  end
  if content_type ~= '' and content_type ~= log.type and media_type(content_type) ~= media_type(log.type) then
    return string.char(LOG_OTHER_TYPE)
  end
  if verdict then return append_reply(log, verdict, epoch, reported) end
  if append.has_order == 1 and log.order and not is_higher(append.order, log.order) then return string.char(LOG_OUT_OF_ORDER) end
  local full = full_verdict(log, append.frame, append.records)
  if full then return string.char(full) end
  local silent = producer ~= '' and not stored and silent_producer(producers)
  if silent == nil then return string.char(LOG_PRODUCERS) end
  return nil, silent
end

-- Records that a field of a hash was stored, so that the former value can be restored if the frames
-- of the log cannot be written. `before` is the former value, nil or false if the field was new.
local function note_field(log, key, field, before)
  local noted = log.noted
  noted[#noted + 1], noted[#noted + 2], noted[#noted + 3] = key, field, before or false
end

-- Restores the fields that were stored for events that could not be written. Otherwise, a retry
-- would be answered as if the events were in the log.
local function restore_fields(log)
  local noted = log.noted
  for at = #noted - 2, 1, -3 do
    local key, field, before = noted[at], noted[at + 1], noted[at + 2]
    if before then call('HSET', key, field, before) else call('HDEL', key, field) end
  end
end

-- Stores the producer and the order of an append that is applied. `silent` is the producer that the
-- append replaces, false if there is none.
local function note_append(log, append, silent)
  local producers = log.base .. 'logProducers:' .. log.name
  if append.producer ~= '' then
    if silent then call('HDEL', producers, silent) end
    call('HSET', producers, append.producer, struct_pack('>ddd', append.epoch, append.number, now))
    note_field(log, producers, append.producer, append.stored)
  end
  if append.has_order == 1 then log.order, log.has_order = append.order, true end
end

-- Appends a frame to a log, closes it, or both.
--
-- Numbers  records u32, crc u32, ending u8 (0 to keep it open), has order u8, epoch f64, number f64
-- Texts    base, name, frame ('' for none), content type ('' for none), producer ('' for none),
--          order
-- Reply    verdict u8. With LOG_APPENDED, LOG_REPEATED, LOG_CLOSED, LOG_STALE_EPOCH, LOG_BAD_START
--          and LOG_GAP also: ending u8, tail position f64, tail check u32, epoch f64, number f64
--          (of the producer, or the number that the verdict reports)
local function log_append()
  local records, crc, ending, has_order, epoch, number = take_numbers('>I4I4BBdd')
  local base, name, frame, content_type, producer, order = take_texts(6)
  local log = open_log(base, name)
  local absence = absence_of(log)
  if absence then return string.char(absence) end
  local append = { records = records, frame = frame, type = content_type, producer = producer, epoch = epoch, number = number, has_order = has_order, order = order }
  local refusal, silent = append_refusal(log, append)
  if refusal then
    if is_repeated(refusal) then use_log(log) end
    return refusal
  end
  local position, check, whole, check_after = log.position, log.check, '', log.check
  if records > 0 then
    whole, check_after = seal_frame(log, frame, crc)
    write_frames(log, position, whole)
  end
  note_append(log, append, silent)
  move_tail(log, whole, check_after, records)
  if ending > 0 then log.ending, log.is_closing = ending, true end
  use_log(log)
  change_log(log)
  publish_append(log, position, check, whole)
  return appended_reply(log, epoch, number)
end

-- Deletes a log. While it has forks, only marks it as deleted.
--
-- Texts  base, name
-- Reply  verdict, then the reference that a source must release, '' for none
local function log_delete()
  local base, name = take_texts(2)
  local log = open_log(base, name)
  local absence = absence_of(log)
  if absence then return { absence } end
  publish_log(log, LOG_DELETE_EVENT, log.position, log.check, '')
  if not has_forks(log) then return { LOG_DONE, remove_log(log) } end
  call('HSET', log.head, 'g', 1)
  call('UNLINK', base .. 'logProducers:' .. name)
  call('ZREM', base .. 'logExpiry', name)
  log.is_deleted = true
  return { LOG_DONE, '' }
end

-- Records a use of a log, see `use_log`.
--
-- Texts  base, name
-- Reply  verdict
local function log_use()
  local base, name = take_texts(2)
  local log = open_log(base, name)
  local absence = absence_of(log)
  if absence then return { absence } end
  use_log(log)
  return { LOG_DONE }
end

-- Removes a log that has expired and has no forks.
--
-- Texts  base, name
-- Reply  MISSING if the log does not exist, is deleted or has not expired; DELETED if it has forks;
--        else LOG_DONE. Then the reference that a source must release, '' for none.
local function log_expire()
  local base, name = take_texts(2)
  local log = open_log(base, name)
  if not log.incarnation or log.is_deleted or not is_expired(log) then
    if not log.incarnation or log.is_deleted then call('ZREM', base .. 'logExpiry', name) else set_expiry(log) end
    return { MISSING, '' }
  end
  publish_log(log, LOG_DELETE_EVENT, log.position, log.check, '')
  if has_forks(log) then
    call('ZREM', base .. 'logExpiry', name) -- the log is removed once it has no forks
    return { DELETED, '' }
  end
  return { LOG_DONE, remove_log(log) }
end

-- Adds a reference to a log, so that the log's frames are kept for a fork that is about to be
-- created.
--
-- Texts  base, name, reference
-- Reply  verdict
local function log_reference()
  local base, name, reference = take_texts(3)
  local log = open_log(base, name)
  local absence = absence_of(log)
  if absence then return { absence } end
  call('SADD', base .. 'logForks:' .. name, reference)
  call('ZADD', base .. 'logReferences', int(now), reference)
  return { LOG_DONE }
end

-- Records that the fork of a reference exists, so that sweeps no longer check the reference.
--
-- Texts  base, reference
-- Reply  verdict
local function log_confirm()
  local base, reference = take_texts(2)
  call('ZREM', base .. 'logReferences', reference)
  return { LOG_DONE }
end

-- Releases a reference. Removes the log if it is deleted or expired and has no other reference.
--
-- Texts  base, name, reference
-- Reply  verdict, then the reference that a source must release, '' for none
local function log_release()
  local base, name, reference = take_texts(3)
  local log = open_log(base, name)
  call('SREM', base .. 'logForks:' .. name, reference)
  call('ZREM', base .. 'logReferences', reference)
  local is_gone = log.incarnation and (log.is_deleted or is_expired(log))
  if not is_gone or has_forks(log) then return { LOG_DONE, '' } end
  return { LOG_DONE, remove_log(log) }
end

-- Forgets a reference that its source has released.
--
-- Texts  base, reference
-- Reply  verdict
local function log_released()
  local base, reference = take_texts(2)
  call('SREM', base .. 'logReleases', reference)
  return { LOG_DONE }
end

-- Returns MISSING or DELETED if the log belongs to an ended stream whose message has expired or was
-- stored at `past` (Unix ms) or earlier. Otherwise, returns nil. A sweep removes such a log later.
local function stream_absence(log, past)
  if not log.event_head or log.ending == 0 then return nil end
  local expiry = tonumber(call('HGET', log.head, 'e'))
  if message_ms(log.message_id) > past and not (expiry and now >= expiry) then return nil end
  return has_forks(log) and DELETED or MISSING
end

-- Reads the head of a log, and some of its own frames. This function is not an operation of a turn.
-- Read-only.
--
-- KEYS   head
-- ARGV   base, name
--        read_ms    Unix ms of the call
--        position   at which the frames to read begin
--        maximum    maximum number of bytes of frames to read, 0 to read no frames
--        is_kept    1 to read the log for a fork, even if it was deleted or has expired
--        past_ms    Unix ms: an ended stream whose message was stored at this time or earlier is
--                   past retention. -1 means no limit
-- Reply  1  verdict    MISSING, DELETED or LOG_DONE
--        2  fields of the head: i t n c w x u b o r
--        3  own frames from the position on, preceded by the 4 bytes before the position, if any;
--           false if no frames are read
local function read_log(_, arguments)
  if not call then take_globals() end
  local base, name, read_ms, position, maximum, is_kept, past_ms = unpack(arguments)
  now, position, maximum = tonumber(read_ms), tonumber(position), tonumber(maximum)
  local log = load_log(base, name)
  if is_kept == '1' and log.incarnation then
    log.is_deleted = false
  else
    local absence = absence_of(log) or stream_absence(log, tonumber(past_ms))
    if absence then return { absence } end
  end
  local frames = false
  if position and maximum > 0 and position >= log.start and position < log.position then
    local from = position - log.start
    frames = call('GETRANGE', log.frames, int(math.max(from - 4, 0)), int(math.min(from + maximum, log.position - log.start) - 1))
  end
  return { LOG_DONE, head_fields(log), frames }
end

local function begin_logs() open_logs, changed_logs, publications, last_log = {}, {}, {}, nil end

-- Writes the changed logs, then sends the publications. All logs are written before any other step,
-- because an error in another step must not leave a log unwritten. If a log cannot be written, the
-- operations that changed it fail, and their publications are not sent. An operation does not fail
-- if Redis refuses its publication, because its change is stored, and a retry without an event id
-- would store it again. Readers notice the gap by the number of the next publication, or at their
-- next read. Returns the first error of a refused publication, nil if no publication was refused.
local function end_logs(replies)
  local refusal
  for _, log in ipairs(changed_logs) do
    local is_done, failure = pcall(write_log, log)
    if not is_done then
      log.is_changed, log.is_used, log.is_closing, log.is_failed = false, false, false, true
      restore_fields(log)
      for _, at in ipairs(log.replies) do replies[at] = failed_reply(failure) end
    end
  end
  for _, log in ipairs(changed_logs) do
    if log.is_used then set_expiry(log) end
    if log.is_closing then pcall(shrink_frames, log) end -- the log is stored, even if this fails
  end
  for _, publication in ipairs(publications) do
    local log, topic, frame = unpack(publication)
    if not log or not log.is_failed then
      local is_done, failure = pcall(call, 'SPUBLISH', topic, frame)
      if not is_done then refusal = refusal or failure end
    end
  end
  return refusal
end
