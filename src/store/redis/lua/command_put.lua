-- Puts pending copies of a broker command into inboxes. Each inbox gets only one copy, however
-- often the script is repeated within an hour. On a Redis Cluster, a call is for one user.
--
-- KEYS   for each user: inboxSeq, inbox, inboxExpiry, inboxSenders, inboxShares,
--        inboxOrder, inboxIds
-- ARGV   see `copy_of` in `inbox.lua`, then messageId
--        then for each user: uid, topic, and bucket, see `user_feed.lua`
-- Reply  1  number of older copies that were dropped to make room
--        2  error of the first user whose copy failed, '' if no copy failed
--        3  -1 if the node need not add the inbox to `inboxDue` of the bucket, which is always
--           the case on a single server. Otherwise, the seq of the copy, 0 if an earlier call has
--           put the copy
--        4  Unix ms with which the node must add the inbox to `inboxDue`, 0 if it need not
--        5  on a Redis Cluster, see `has_outbox`; else 0
local command_copy = copy_of(unpack(ARGV, 1, COPY_ARGS))
local message_id = tonumber(ARGV[11])
local FIRST_USER = 12
local INBOX_KEYS = 7

-- Time for which `inboxIds` remembers a copy. Sweeps skip commands that are older than this time.
local REMEMBERED_MS = 3600000
-- Time added to the time to live of `inboxIds`, because `copy.now` and the server's clock may
-- differ.
local CLOCK_SKEW_MS = 60000
local MIN_REMEMBERED = 1000

local unlisted_seq, due, has_events = -1, 0, 0

-- Makes the node add the inbox to `inboxDue` unless the inbox is already listed there with a time
-- that is not later than the copy's expiry. `due` may be earlier than the copy's expiry, because
-- the inbox was not added for copies that were put while the feed was off, and such a copy may
-- expire before this copy.
local function note_unlisted(inbox, seq, ends)
  if inbox.bucket ~= OUTBOX then return end
  local listed, ends_ms = redis.call('GET', inbox.listed), tonumber(ends)
  if not listed or tonumber(listed) > ends_ms then
    unlisted_seq, due = seq, math.min(ends_ms, next_expiry(inbox) or ends_ms)
  end
end

-- Calls `put_copy` unless the inbox already got its copy. Returns the results of `put_copy`, or 0
-- and 0 if the inbox already got its copy.
local function put_once(id, copy, inbox, topic)
  local now = tonumber(copy.now)
  local is_new = redis.call('ZADD', inbox.ids, int(now), int(id)) == 1
  redis.call('PEXPIRE', inbox.ids, REMEMBERED_MS + CLOCK_SKEW_MS)
  if not is_new then
    has_events = has_outbox(inbox)
    note_unlisted(inbox, 0, copy.ends)
    return 0, 0
  end
  local is_put, seq, dropped = pcall(put_copy, id, copy, inbox, topic)
  if not is_put then
    redis.call('ZREM', inbox.ids, int(id))
    error(seq, 0)
  end
  has_events = has_outbox(inbox)
  if seq > 0 then note_unlisted(inbox, seq, copy.ends) end
  if seq % TIDY_EVERY == 0 then
    redis.call('ZREMRANGEBYSCORE', inbox.ids, '-inf', int(now - REMEMBERED_MS))
    redis.call('ZREMRANGEBYRANK', inbox.ids, 0, -1 - math.max(tonumber(copy.max_copies), MIN_REMEMBERED))
  end
  return seq, dropped
end

local dropped, _, failure = put_copies(put_once, message_id, command_copy, { first = FIRST_USER, last = #ARGV }, 1, INBOX_KEYS)
return { dropped, failure, unlisted_seq, due, has_events }
