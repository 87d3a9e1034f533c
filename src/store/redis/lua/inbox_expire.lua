-- Removes expired copies from an inbox and writes `command.expired` for them. One call removes at
-- most a few hundred copies.
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
-- Reply  time when the next copy expires, which may have passed; '' if the inbox is empty
local MAX_COPIES = 250
local inbox = inbox_at(1, ARGV[2], ARGV[3], ARGV[4])
expire_copies(inbox, tonumber(ARGV[1]), MAX_COPIES)
local next_ms = next_expiry(inbox)
local is_apart = inbox.bucket == OUTBOX
if not next_ms then
  redis.call('UNLINK', inbox.copies, inbox.listed)
  if not is_apart then redis.call('ZREM', inbox.bucket .. 'inboxDue', inbox.uid) end
  return ''
end
if is_apart then
  redis.call('SET', inbox.listed, int(next_ms), 'PX', KEPT_MS)
else
  redis.call('ZADD', inbox.bucket .. 'inboxDue', int(next_ms), inbox.uid)
end
return int(next_ms)
