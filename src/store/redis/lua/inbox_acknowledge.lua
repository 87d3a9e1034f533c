-- Removes acknowledged copies and some expired copies from an inbox.
--
-- KEYS   see `inbox_of` in `inbox.lua`
-- ARGV   now        Unix ms
--        uid
--        bucket     see `user_feed.lua`
--        event_ids  message id counter
--        then the inboxSeq of each copy
-- Reply  1  number of acknowledged copies that were still in the inbox
--        2  see `has_outbox`
local now, uid, bucket, event_ids = unpack(ARGV, 1, 4)
local inbox = inbox_of(uid, bucket, event_ids, unpack(KEYS))
local FIRST_SEQ = 5
if redis.call('EXISTS', inbox.copies) == 0 then return { 0, has_outbox(inbox) } end
expire_copies(inbox, tonumber(now), 1000)
local entry_ids = {}
for at = FIRST_SEQ, #ARGV do entry_ids[#entry_ids + 1] = ARGV[at] .. '-0' end
local removed = redis.call('XDEL', inbox.copies, unpack(entry_ids))
if removed > 0 and redis.call('EXISTS', inbox.expiry) == 1 then redis.call('ZREM', inbox.expiry, unpack(ARGV, FIRST_SEQ)) end
if removed > 0 and redis.call('EXISTS', inbox.senders) == 1 then
  for at = FIRST_SEQ, #ARGV do forget_sender(inbox, ARGV[at]) end
end
return { removed, has_outbox(inbox) }
