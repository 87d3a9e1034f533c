-- Accepts a command: its id, once per sender and clientMsgNo; copies for those of its recipients
-- whose inboxes are on this server; and a note of the others, kept until each of them has a copy.
-- KEYS  1 dedupe, 2 messageIds (the counter), 3 commands (the bucket's notes); then of each user
--   inboxSeq, inbox, inboxExpiry
-- ARGV  as of `put_copy`; 8 bucket of the counter, 9 for how long clientMsgNo is remembered (ms, 0:
--   it is neither looked up nor remembered), 10 the note's head,
--       11 the recipients that get no copy now (MessagePack; '': none), 12 number of those that do;
--         then uid and topic of each, and of those only notified
-- Reply new: {0, messageId, copies that left full inboxes, error ('': none), 1: it is noted, else
--   0};
--       a retry: {1, messageId, seq and pub of the first command or message, fields of its note
--         (nil: none)}
local now, window, left = tonumber(ARGV[1]), tonumber(ARGV[9]), ARGV[11]
if window > 0 then
  local id, seq, pub = remembered(KEYS[1], now, window)
  if id then
    local note = pub == 0 and redis.call('XRANGE', KEYS[3], int(id), int(id))[1]
    return { 1, id, seq, pub, note and note[2] }
  end
end

redis.call('XLEN', KEYS[3]) -- a key of a wrong type fails here, before anything is written
local users = { first = 13, last = 12 + 2 * tonumber(ARGV[12]) }
local id = take_ids(KEYS[2], tonumber(ARGV[8]), now, 1)
local dropped, failed, cause = put_copies(put_copy, id, users, 4, 3)
if #failed > 0 then
  for _, uid in ipairs(left == '' and {} or cmsgpack.unpack(left)) do failed[#failed + 1] = uid end
  left = cmsgpack.pack(failed)
end
if left ~= '' then redis.call('XADD', KEYS[3], int(id) .. '-0', 'h', ARGV[10], 'r', ARGV[6], 'u', left) end
if window > 0 then remember(KEYS[1], window, ARGV[1], '0-' .. int(id)) end
for at = users.last + 1, #ARGV, 2 do redis.call('SPUBLISH', ARGV[at + 1], command_frame(id, 0, ARGV[6], ARGV[at], ARGV[7])) end
return { 0, id, dropped, cause, left ~= '' and 1 or 0 }
