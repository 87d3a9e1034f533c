-- Writes command inboxes (see `ports.ts` for the keys). Placed in front of the scripts that write
-- them, after `user_feed.lua` and the constant KEPT_MS (`INBOX_KEPT_MS` in
-- `steps/command-steps.ts`).
local TIDY_EVERY = 32 -- number of copies after which expired copies are removed

local SEQ_DIGITS = 15 -- number of digits of the highest inboxSeq

local MAX_EXPIRED = 100 -- argument `count` of `expire_copies` in the calls in this file

-- Returns a user's inbox.
--   bucket     see `user_feed.lua`
--   event_ids  message id counter, for the user's events
--   copies     key `inbox`, followed by the keys inboxExpiry, inboxSenders, inboxShares, inboxOrder
--   last_seq   key `inboxSeq`, nil if the script puts no copy
--   ids        key `inboxIds`, nil if the script does not use it
local function inbox_of(uid, bucket, event_ids, copies, expiry, senders, shares, order, last_seq, ids)
  local base = string.sub(copies, 1, -1 - #'inbox')
  return {
    copies = copies, expiry = expiry, senders = senders, shares = shares, order = order, last_seq = last_seq, ids = ids,
    listed = base .. 'inboxListed', uid = uid, bucket = bucket, outbox = base .. 'outbox', event_ids = event_ids,
    kept_ms = bucket == '' and 0 or KEPT_MS,
  }
end

-- Returns the prefix of the sender's copies in `order`. Members with the same prefix are sorted by
-- seq. `sender` is '' for a backend.
local function order_prefix(sender)
  return #sender .. ':' .. sender .. ':'
end

local function order_member(sender, seq)
  return order_prefix(sender) .. string.rep('0', SEQ_DIGITS - #seq) .. seq
end

-- Removes the entries of a removed copy from `order` and `senders`, and subtracts the copy from its
-- sender's share.
local function forget_sender(inbox, seq)
  local sender = redis.call('HGET', inbox.senders, seq) or ''
  redis.call('ZREM', inbox.order, order_member(sender, seq))
  if sender == '' then return end
  redis.call('HDEL', inbox.senders, seq)
  if tonumber(redis.call('ZINCRBY', inbox.shares, -1, sender)) <= 0 then redis.call('ZREM', inbox.shares, sender) end
end

-- Returns true if the inbox contains copies from users. Must be called before `shares` is read or a
-- user's copy is added. A migration does not write `shares`, so this function writes it on the
-- first call.
local function has_senders(inbox)
  if redis.call('EXISTS', inbox.senders) == 0 then return false end
  if redis.call('EXISTS', inbox.shares) == 1 then return true end
  for _, sender in ipairs(redis.call('HVALS', inbox.senders)) do redis.call('ZINCRBY', inbox.shares, 1, sender) end
  local ttl_ms = redis.call('PTTL', inbox.senders)
  if ttl_ms > 0 then redis.call('PEXPIRE', inbox.shares, int(ttl_ms)) end
  return true
end

-- Writes `command.expired` for the commands with these ids if the feed is on.
local function emit_expired(inbox, ids)
  if #ids == 0 or not has_user_feed(inbox) then return end
  for at = 1, #ids, MAX_EVENT_COMMANDS do
    local page = table.concat(ids, ',', at, math.min(#ids, at + MAX_EVENT_COMMANDS - 1))
    emit_user(inbox, inbox.event_ids, 'events', COMMAND_EXPIRED, '{"command_ids":[' .. page .. ']}')
  end
end

-- Removes expired copies and writes their events. Removes at most `count` copies that are listed in
-- `expiry`, and at most `count` copies from the beginning of the inbox. `expiry` lists the copies
-- that expire before older copies. All other copies expire in the order in which they were added.
-- Returns true if expired copies may remain. If the user's outbox is full, removes nothing and
-- returns false.
local function expire_copies(inbox, now, count)
  if is_outbox_full(inbox) then return false end
  local ids = {}
  local expired_seqs = redis.call('ZRANGEBYSCORE', inbox.expiry, '-inf', int(now), 'LIMIT', 0, count)
  for _, seq in ipairs(expired_seqs) do
    if inbox.bucket ~= '' then
      local copy = redis.call('XRANGE', inbox.copies, seq .. '-0', seq .. '-0')[1]
      if copy then ids[#ids + 1] = copy[2][4] end
    end
    redis.call('XDEL', inbox.copies, seq .. '-0')
    redis.call('ZREM', inbox.expiry, seq)
    forget_sender(inbox, seq)
  end
  local has_more = #expired_seqs == count
  for n = 1, count do
    local oldest = redis.call('XRANGE', inbox.copies, '-', '+', 'COUNT', 1)[1]
    if not oldest or tonumber(oldest[2][2]) > now then break end
    redis.call('XDEL', inbox.copies, oldest[1])
    forget_sender(inbox, string.match(oldest[1], '^%d+'))
    ids[#ids + 1] = oldest[2][4]
    has_more = has_more or n == count
  end
  emit_expired(inbox, ids)
  return has_more
end

-- Removes expired copies. Must be called before an operation that might drop a copy. If the event
-- feed is on, removes all expired copies, because an expired copy that was dropped instead would
-- get no event.
local function expire_before_drop(inbox, now)
  while expire_copies(inbox, now, MAX_EXPIRED) and inbox.bucket ~= '' do end
end

-- Returns 1 if the user's outbox has entries, else 0. `expire_copies` may have added entries. The
-- node must move them to the feed, because no sweep does this if the user does not log in again.
local function has_outbox(inbox)
  return inbox.bucket == OUTBOX and redis.call('EXISTS', inbox.outbox) or 0
end

-- Returns the time when the next copy expires, nil if there is no copy.
local function next_expiry(inbox)
  local listed = redis.call('ZRANGE', inbox.expiry, 0, 0, 'WITHSCORES')[2]
  local oldest = redis.call('XRANGE', inbox.copies, '-', '+', 'COUNT', 1)[1]
  if not oldest then return nil end
  return math.min(tonumber(listed or oldest[2][2]), tonumber(oldest[2][2]))
end

local function extend_ttl(key, ms)
  if redis.call('PEXPIRE', key, ms, 'GT') == 0 then redis.call('PEXPIRE', key, ms, 'NX') end
end

-- Makes these lists of the inbox expire together with its copies. If a list expired earlier, some
-- copies would no longer be counted, dropped, or removed on time.
local function keep_with_copies(inbox, ...)
  local ttl_ms = int(redis.call('PTTL', inbox.copies))
  for _, list in ipairs({ ... }) do redis.call('PEXPIRE', list, ttl_ms) end
end

-- Drops the sender's oldest copy in `order`. If the sender has no copy there, removes the
-- sender from `shares`. Returns the number of dropped copies.
local function drop_oldest(inbox, sender)
  local prefix = order_prefix(sender)
  local member = redis.call('ZRANGE', inbox.order, '[' .. prefix, '(' .. prefix .. ':', 'BYLEX', 'LIMIT', 0, 1)[1]
  if not member then
    redis.call('ZREM', inbox.shares, sender)
    return 0
  end
  local seq = string.match(member, '^0*(%d+)', #prefix + 1)
  forget_sender(inbox, seq)
  redis.call('ZREM', inbox.order, member)
  return redis.call('XDEL', inbox.copies, seq .. '-0')
end

-- Makes room for a copy from a backend in an inbox that also contains copies from users. Drops the
-- oldest copy of the inbox if a backend sent it, else the oldest backend copy in `order`. If
-- `order` has no backend copy, drops a copy that `victim` sent. Returns the number of dropped
-- copies.
local function drop_backend(inbox, victim)
  local oldest = redis.call('XRANGE', inbox.copies, '-', '+', 'COUNT', 1)[1][1]
  local seq, prefix = string.match(oldest, '^%d+'), order_prefix('')
  if redis.call('HEXISTS', inbox.senders, seq) == 0 then
    forget_sender(inbox, seq)
    return redis.call('XDEL', inbox.copies, oldest)
  end
  local has_listed = redis.call('ZLEXCOUNT', inbox.order, '[' .. prefix, '(' .. prefix .. ':') > 0
  return drop_oldest(inbox, has_listed and '' or victim)
end

-- Drops copies until fewer than `max_copies` remain. Each time, drops the oldest copy of the sender
-- with the most copies; all backends count as one sender. `by` is the user whose copy needs the
-- room, '' for a backend. A user's copy never displaces a copy from a backend: if only copies from
-- backends are left, the function stops. Returns the number of dropped copies, and true if there is
-- room now, else false.
local function make_room(inbox, max_copies, by)
  local dropped, has_users = 0, has_senders(inbox)
  while true do
    local length = redis.call('XLEN', inbox.copies)
    if length < max_copies then return dropped, true end
    local victim, most = nil, 0
    if has_users then
      local top = redis.call('ZRANGE', inbox.shares, 0, 0, 'REV', 'WITHSCORES')
      victim, most = top[1], tonumber(top[2] or 0)
    end
    if victim and (by ~= '' or length - redis.call('HLEN', inbox.senders) < most) then
      dropped = dropped + drop_oldest(inbox, victim)
    elseif by ~= '' then
      return dropped, false
    elseif victim then
      dropped = dropped + drop_backend(inbox, victim)
    else
      return dropped + redis.call('XTRIM', inbox.copies, 'MAXLEN', int(max_copies - 1)), true
    end
  end
end

local COPY_ARGS = 10 -- number of arguments of `copy_of`

-- Returns a command's copy, which can be put into any number of inboxes. The parameters are the
-- first arguments of the scripts that put copies. All are strings.
--   now            Unix ms
--   ends           Unix ms at which the copy expires
--   ends_early     1 if it expires before older copies, else 0
--   max_copies     maximum number of copies in an inbox
--   payload_bytes  size of the payload
--   record         record of the command
--   origin         session that gets no push, '' if there is none
--   sender         user who sent the command, '' if a backend sent it
--   share          maximum number of copies that one sender may have in another user's inbox
--   event_ids      see `inbox_of`
local function copy_of(now, ends, ends_early, max_copies, payload_bytes, record, origin, sender, share, event_ids)
  return {
    now = now, ends = ends, ends_early = ends_early, max_copies = max_copies, payload_bytes = payload_bytes, record = record,
    origin = origin, sender = sender, share = share, event_ids = event_ids,
  }
end

-- Returns true if the sender's share of the inbox is full. If it seems full, first removes expired
-- copies.
local function has_share(inbox, copy)
  local sender, share = copy.sender, tonumber(copy.share)
  if sender == '' or sender == inbox.uid or not has_senders(inbox) then return false end
  if tonumber(redis.call('ZSCORE', inbox.shares, sender) or 0) < share then return false end
  expire_before_drop(inbox, tonumber(copy.now))
  return tonumber(redis.call('ZSCORE', inbox.shares, sender) or 0) >= share
end

-- Returns true if the inbox can accept the copy. A copy from a backend is always accepted. A copy
-- from a user is not accepted if the sender's share is full, or if the inbox is full and contains
-- only copies from backends, which are not dropped for it.
local function has_room(inbox, copy)
  if copy.sender == '' then return true end
  if has_share(inbox, copy) then return false end
  if redis.call('XLEN', inbox.copies) < tonumber(copy.max_copies) then return true end
  expire_before_drop(inbox, tonumber(copy.now))
  return redis.call('XLEN', inbox.copies) < tonumber(copy.max_copies) or has_senders(inbox)
end

-- Puts a copy into an inbox. Publishes the copy last, so that a copy that could not be stored is
-- not published. Returns the copy's inboxSeq, and the number of older copies that were dropped for
-- it. The inboxSeq is 0 if the inbox is full of copies from backends and a user sent the copy.
local function put_copy(id, copy, inbox, topic)
  local now, max_copies, sender, dropped = tonumber(copy.now), tonumber(copy.max_copies), copy.sender, 0
  -- The time to live is at least 1 ms, because the copy may already have expired.
  local ttl_ms = int(math.max(1, tonumber(copy.ends) - now) + inbox.kept_ms)
  if has_share(inbox, copy) then dropped = drop_oldest(inbox, sender) end
  if redis.call('XLEN', inbox.copies) >= max_copies then
    expire_before_drop(inbox, now)
    local dropped_now, has_made = make_room(inbox, max_copies, sender)
    dropped = dropped + dropped_now
    if not has_made then return 0, dropped end
  end
  local seq = redis.call('INCR', inbox.last_seq)
  if seq % TIDY_EVERY == 0 then expire_copies(inbox, now, MAX_EXPIRED) end
  if copy.ends_early == '1' then redis.call('ZADD', inbox.expiry, copy.ends, int(seq)) end
  redis.call('XADD', inbox.copies, int(seq) .. '-0', 'x', copy.ends, 'i', int(id), 'n', copy.payload_bytes, 'r', copy.record)
  extend_ttl(inbox.copies, ttl_ms)
  if copy.ends_early == '1' then
    keep_with_copies(inbox, inbox.expiry)
  else
    redis.call('PEXPIRE', inbox.expiry, ttl_ms, 'GT')
  end
  if sender ~= '' then
    -- If this is the first copy from a user, all older copies are from backends and need not be
    -- listed.
    if not has_senders(inbox) then redis.call('UNLINK', inbox.order) end
    redis.call('HSET', inbox.senders, int(seq), sender)
    redis.call('ZINCRBY', inbox.shares, 1, sender)
  end
  if sender ~= '' or redis.call('EXISTS', inbox.senders) == 1 then
    redis.call('ZADD', inbox.order, 0, order_member(sender, int(seq)))
    keep_with_copies(inbox, inbox.senders, inbox.shares, inbox.order)
  end
  if inbox.bucket ~= '' and inbox.bucket ~= OUTBOX then redis.call('ZADD', inbox.bucket .. 'inboxDue', 'LT', copy.ends, inbox.uid) end
  redis.call('SPUBLISH', topic, command_frame(id, seq, copy.record, inbox.uid, copy.origin))
  return seq, dropped
end

-- Returns the inbox and the topic of a user who gets a copy.
--   at         index in ARGV of the user's uid, followed by the topic and the bucket
--   first_key  index in KEYS of the user's inboxSeq, followed by inbox, inboxExpiry, inboxSenders,
--              inboxShares, inboxOrder and, in some scripts, inboxIds
local function receiver_at(at, first_key, last_key, event_ids)
  local uid, topic, bucket = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local last_seq, copies, expiry, senders, shares, order, ids = unpack(KEYS, first_key, last_key)
  return inbox_of(uid, bucket, event_ids, copies, expiry, senders, shares, order, last_seq, ids), topic
end

-- Calls `put` for several users. A failure for one user does not affect the others.
--   users  ARGV contains uid, topic and bucket of each user, from index `users.first` to
--          `users.last`
--   keys   index in KEYS of the first user's keys; each user has `step` keys
-- Returns the number of older copies that were dropped to make room, the uids for which `put`
-- failed, and the first error, '' if `put` never failed.
local function put_copies(put, id, copy, users, keys, step)
  local dropped, failed_uids, failure = 0, {}, ''
  for at = users.first, users.last, 3 do
    local inbox, topic = receiver_at(at, keys, keys + step - 1, copy.event_ids)
    local is_put, seq, dropped_now = pcall(put, id, copy, inbox, topic)
    if is_put then
      dropped = dropped + dropped_now
    else
      failed_uids[#failed_uids + 1] = inbox.uid
      if failure == '' then failure = type(seq) == 'table' and seq.err or tostring(seq) end
    end
    keys = keys + step
  end
  return dropped, failed_uids, failure
end
