-- Removes expired copies from an inbox and writes `command.expired` for them. One call removes at
-- most 2 * MAX_COPIES copies.
--
-- KEYS   see `inbox_of` in `inbox.lua`
-- ARGV   now        Unix ms
--        uid
--        bucket     see `user_feed.lua`
--        event_ids  message id counter
-- Reply  time when the next copy expires, which may be in the past; '' if the inbox is empty
local now, uid, bucket, event_ids = unpack(ARGV)
local inbox = inbox_of(uid, bucket, event_ids, unpack(KEYS))
local MAX_COPIES = 250
expire_copies(inbox, tonumber(now), MAX_COPIES)
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
