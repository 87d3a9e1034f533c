-- Accepts a broker command. Unless the command is a retry, assigns its id and puts copies into the
-- inboxes in KEYS. If further scripts must complete the command, writes a pending entry with the
-- recipients that still lack a copy.
--
-- KEYS   dedupe        dedupe record
--        counter       message id counter
--        commands      pending copies of the bucket
--        then for each user that gets a copy now: inboxSeq, inbox, inboxExpiry, inboxSenders,
--        inboxShares, inboxOrder
-- ARGV   see `copy_of` in `inbox.lua`, then
--        id_bucket     bucket of the counter, -1 on a single server
--        window        dedupe window in ms, 0 if there is no clientMsgNo to look up and store
--        head          field `h` of the pending entry
--        pending_uids  MessagePack list of the recipients that get no copy now, which may be empty;
--                      '' if this script completes the command
--        is_refused    1 if the caller has found that the only recipient has no room, else 0
--        payload_hash  see `store/payload-hash.ts`
--        allows_reuse  1 if the clientMsgNo may belong to another message or command, else 0
--        event_key     key of the event `command.sent`, '' if this event is not written
--        event_fields  part of the event's JSON object that follows the message id fields
--        has_number    1 if `event_fields` contains the clientMsgNo, else 0
--        user_count    number of users that get a copy now
--        then for each of these users: uid, topic, and bucket, see `user_feed.lua`
--        then uid and topic of each user that is notified without a copy
-- Reply to a new command
--   1  0
--   2  messageId
--   3  number of older copies that were dropped to make room
--   4  first error, '' if no copy failed
--   5  1 if a pending entry was written, else 0
-- Reply to a command whose only recipient has no room for it
--   1  2
-- Reply to a command that is refused, because its clientMsgNo belongs to another message or command
--   1  3
-- Reply to a retry
--   1  1
--   2  messageId of the first command or message
--   3  its seq
--   4  its publication number, 0 for a command
--   5  fields of the pending entry of the first command, nil if there is no such entry
local dedupe, counter, commands = KEYS[1], KEYS[2], KEYS[3]
local copy = copy_of(unpack(ARGV, 1, COPY_ARGS))
local id_bucket, window, head, pending_uids, is_refused = tonumber(ARGV[11]), tonumber(ARGV[12]), ARGV[13], ARGV[14], ARGV[15]
local payload_hash, allows_reuse, event_key, event_fields = ARGV[16], ARGV[17], ARGV[18], ARGV[19]
local has_number, user_count = ARGV[20], ARGV[21]
local FIRST_USER = 22
local USER_ARGS = 3
local FIRST_INBOX = 4 -- index in KEYS of the first user's keys
local INBOX_KEYS = 6

local now = id_ms(id_bucket, tonumber(copy.now))
if window > 0 then
  local id, seq, pub, first_hash = read_dedupe(dedupe, now, window)
  local is_other = id and is_other_payload(first_hash, payload_hash)
  if is_other and allows_reuse == '0' then return { 3 } end
  if id and not is_other then
    local pending_entry = pub == 0 and redis.call('XRANGE', commands, int(id), int(id))[1]
    return { 1, id, seq, pub, pending_entry and pending_entry[2] }
  end
end

redis.call('XLEN', commands) -- fails if the key has the wrong type, before anything is written
local users = { first = FIRST_USER, last = FIRST_USER - 1 + USER_ARGS * tonumber(user_count) }
local is_single = user_count == '1' and pending_uids == ''
if is_single and is_refused ~= '1' and copy.sender ~= '' then
  local inbox = receiver_at(FIRST_USER, FIRST_INBOX, FIRST_INBOX + INBOX_KEYS - 1, copy.event_ids)
  -- If the inbox cannot be read, `put_copy` later reports the error.
  local is_read, has = pcall(has_room, inbox, copy)
  if is_read and not has then return { 2 } end
end
if is_refused == '1' then return { 2 } end
local id = reserve_ids(counter, id_bucket, now, 1)
local dropped, failed_uids, failure = put_copies(put_copy, id, copy, users, FIRST_INBOX, INBOX_KEYS)
if #failed_uids > 0 then
  for _, uid in ipairs(pending_uids == '' and {} or cmsgpack.unpack(pending_uids)) do failed_uids[#failed_uids + 1] = uid end
  pending_uids = cmsgpack.pack(failed_uids)
end
if pending_uids ~= '' then redis.call('XADD', commands, int(id) .. '-0', 'h', head, 'r', copy.record, 'u', pending_uids) end
if window > 0 then write_dedupe(dedupe, window, int(now), '0-' .. int(id), nil, payload_hash) end
if event_key ~= '' then
  local bucket = string.sub(commands, 1, -1 - #'commands')
  if redis.call('HEXISTS', bucket .. 'feed', 'number') == 1 then
    local text = int(id)
    local fields = '{"message_id":' .. text .. ',"message_idstr":"' .. text .. '",'
    if has_number == '0' then fields = fields .. '"client_msg_no":"server-' .. text .. '",' end
    append_event(bucket .. 'feed', bucket .. 'onDemandEvents', counter, id_bucket, event_key, COMMAND_SENT, '0', fields .. event_fields)
  end
end
for at = users.last + 1, #ARGV, 2 do
  local uid, topic = ARGV[at], ARGV[at + 1]
  redis.call('SPUBLISH', topic, command_frame(id, 0, copy.record, uid, copy.origin))
end
return { 0, id, dropped, failure, pending_uids ~= '' and 1 or 0 }
