-- Accepts a broker command. Unless the command is a retry, assigns its id and puts copies into the
-- inboxes in KEYS. If further scripts must complete the command, writes a pending entry with the
-- recipients that still lack a copy.
--
-- KEYS   1  dedupe
--        2  counter of message ids
--        3  commands (pending copies of the bucket)
--        then for each user that gets a copy now: inboxSeq, inbox, inboxExpiry, inboxSenders,
--        inboxShares, inboxOrder
-- ARGV   1 to 10  see `inbox.lua`
--        11  bucket of the counter, -1 on a single server
--        12  dedupe window in ms, 0 if there is no clientMsgNo to look up and store
--        13  head of the pending entry
--        14  MessagePack list of the recipients that get no copy now, which may be empty; '' if
--            this script completes the command
--        15  1 if the caller has found that the only recipient has no room, else 0
--        16  hash of the payload, see `store/payload-hash.ts`
--        17  1 if the clientMsgNo may belong to another message or command, else 0
--        18  key of the event `command.sent`, '' if none is written
--        19  end of the event's JSON object, which begins with the fields of the message id
--        20  1 if ARGV[19] contains the clientMsgNo, else 0
--        21  number of users that get a copy now, then uid and topic of each, and bucket, see
--            `user_feed.lua`
--        then uid and topic of each user that is notified without a copy
-- Reply to a new command
--   1  0
--   2  messageId
--   3  number of copies that full inboxes dropped
--   4  error, or ''
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
--   5  fields of the pending entry of the first command, or nil

-- Emits `command.sent` if the feed of the bucket is on.
local function emit_command(id)
  local bucket = string.sub(KEYS[3], 1, -1 - #'commands')
  if redis.call('HEXISTS', bucket .. 'feed', 'number') == 0 then return end
  local text = int(id)
  local fields = '{"message_id":' .. text .. ',"message_idstr":"' .. text .. '",'
  if ARGV[20] == '0' then fields = fields .. '"client_msg_no":"server-' .. text .. '",' end
  append_event(bucket .. 'feed', bucket .. 'onDemandEvents', KEYS[2], tonumber(ARGV[11]), ARGV[18], COMMAND_SENT, '0', fields .. ARGV[19])
end

local now, window, pending_uids = id_ms(tonumber(ARGV[11]), tonumber(ARGV[1])), tonumber(ARGV[12]), ARGV[14]
if window > 0 then
  local id, seq, pub, first_hash = read_dedupe(KEYS[1], now, window)
  local is_other = id and is_other_payload(first_hash, ARGV[16])
  if is_other and ARGV[17] == '0' then return { 3 } end
  if id and not is_other then
    local pending_entry = pub == 0 and redis.call('XRANGE', KEYS[3], int(id), int(id))[1]
    return { 1, id, seq, pub, pending_entry and pending_entry[2] }
  end
end

redis.call('XLEN', KEYS[3]) -- fails if the key has the wrong type, before anything is written
local users = { first = 22, last = 21 + 3 * tonumber(ARGV[21]) }
local is_single = users.last == users.first + 2 and pending_uids == ''
if is_single and ARGV[15] ~= '1' then
  -- If the inbox cannot be read, `put_copy` later reports the error.
  local is_read, has = pcall(has_room, inbox_at(5, ARGV[22], ARGV[24], ARGV[10]))
  if is_read and not has then return { 2 } end
end
if ARGV[15] == '1' then return { 2 } end
local id = reserve_ids(KEYS[2], tonumber(ARGV[11]), now, 1)
local dropped, failed_uids, failure = put_copies(put_copy, id, users, 4, 6)
if #failed_uids > 0 then
  for _, uid in ipairs(pending_uids == '' and {} or cmsgpack.unpack(pending_uids)) do failed_uids[#failed_uids + 1] = uid end
  pending_uids = cmsgpack.pack(failed_uids)
end
if pending_uids ~= '' then redis.call('XADD', KEYS[3], int(id) .. '-0', 'h', ARGV[13], 'r', ARGV[6], 'u', pending_uids) end
if window > 0 then write_dedupe(KEYS[1], window, int(now), '0-' .. int(id), nil, ARGV[16]) end
if ARGV[18] ~= '' then emit_command(id) end
for at = users.last + 1, #ARGV, 2 do redis.call('SPUBLISH', ARGV[at + 1], command_frame(id, 0, ARGV[6], ARGV[at], ARGV[7])) end
return { 0, id, dropped, failure, pending_uids ~= '' and 1 or 0 }
