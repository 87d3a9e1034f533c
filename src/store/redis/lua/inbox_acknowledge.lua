-- Removes acknowledged copies and some expired copies from an inbox.
--
-- KEYS   1  inbox
--        2  inboxExpiry
--        3  inboxSenders
--        4  inboxShares
--        5  inboxOrder
-- ARGV   1  now
--        2  uid
--        3  bucket, see `user_feed.lua`
--        4  counter of message ids
--        then the inboxSeq of each copy
-- Reply  1  number of acknowledged copies that were still in the inbox
--        2  see `has_outbox`
local FIRST = 5
local inbox = inbox_at(1, ARGV[2], ARGV[3], ARGV[4])
if redis.call('EXISTS', KEYS[1]) == 0 then return { 0, has_outbox(inbox) } end
expire_copies(inbox, tonumber(ARGV[1]), 1000)
local ids = {}
for at = FIRST, #ARGV do ids[at - FIRST + 1] = ARGV[at] .. '-0' end
local removed = redis.call('XDEL', KEYS[1], unpack(ids))
if removed > 0 and redis.call('EXISTS', KEYS[2]) == 1 then redis.call('ZREM', KEYS[2], unpack(ARGV, FIRST)) end
if removed > 0 and redis.call('EXISTS', KEYS[3]) == 1 then
  for at = FIRST, #ARGV do forget_sender(inbox, ARGV[at]) end
end
return { removed, has_outbox(inbox) }
