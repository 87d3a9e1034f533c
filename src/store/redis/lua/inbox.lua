-- Writes command inboxes (keys: `ports.ts`). Placed in front of the scripts that write them.
local TIDY_EVERY = 32 -- number of copies after which expired copies are removed

-- Forgets whose copy it was, after the copy was removed. Copies of backends are not remembered.
local function forget_sender(senders, seq)
  local sender = redis.call('HGET', senders, seq)
  if not sender then return end
  redis.call('HDEL', senders, seq)
  local count = '#' .. sender
  if redis.call('HEXISTS', senders, count) == 0 then return end -- see `copies_of`
  if redis.call('HINCRBY', senders, count, -1) <= 0 then redis.call('HDEL', senders, count) end
end

-- Returns the sender of each copy, by seq, and the number of copies of each user.
local function read_senders(senders)
  local sender_of, counts = {}, {}
  local fields = redis.call('HGETALL', senders)
  for at = 1, #fields, 2 do
    if string.sub(fields[at], 1, 1) ~= '#' then
      local sender = fields[at + 1]
      sender_of[fields[at]] = sender
      counts[sender] = (counts[sender] or 0) + 1
    end
  end
  return sender_of, counts
end

-- Returns the number of a user's copies. A migration does not write it, so it is counted once.
local function copies_of(senders, sender)
  local count = redis.call('HGET', senders, '#' .. sender)
  if count then return tonumber(count) end
  local _, counts = read_senders(senders)
  if counts[sender] then redis.call('HSET', senders, '#' .. sender, counts[sender]) end
  return counts[sender] or 0
end

-- Removes expired copies: at most `count` that are listed in `expiry`, and at most `count` from the
-- beginning of the inbox. `expiry` lists the copies that expire before older copies. The others
-- expire in the order in which they were added.
local function expire_copies(inbox, expiry, senders, now, count)
  local expired_seqs = redis.call('ZRANGEBYSCORE', expiry, '-inf', int(now), 'LIMIT', 0, count)
  for _, seq in ipairs(expired_seqs) do
    redis.call('XDEL', inbox, seq .. '-0')
    redis.call('ZREM', expiry, seq)
    forget_sender(senders, seq)
  end
  for _ = 1, count do
    local oldest = redis.call('XRANGE', inbox, '-', '+', 'COUNT', 1)[1]
    if not oldest or tonumber(oldest[2][2]) > now then return end
    redis.call('XDEL', inbox, oldest[1])
    forget_sender(senders, string.match(oldest[1], '^%d+'))
  end
end

local function extend_ttl(key, ms)
  if redis.call('PEXPIRE', key, ms, 'GT') == 0 then redis.call('PEXPIRE', key, ms, 'NX') end
end

local function drop_copy(inbox, senders, seq)
  redis.call('XDEL', inbox, seq .. '-0')
  forget_sender(senders, seq)
end

-- Drops the oldest copy of a user.
local function drop_oldest(inbox, senders, sender_of, sender)
  local oldest
  for seq, other in pairs(sender_of) do
    if other == sender and (not oldest or tonumber(seq) < tonumber(oldest)) then oldest = seq end
  end
  if oldest then drop_copy(inbox, senders, oldest) end
end

-- Drops the oldest copy that a backend sent. The inbox must contain one.
local function drop_backend(inbox, senders, sender_of)
  local from = '-'
  while true do
    local page = redis.call('XRANGE', inbox, from, '+', 'COUNT', 16)
    if not page[1] then return end
    for _, entry in ipairs(page) do
      local seq = string.match(entry[1], '^%d+')
      if not sender_of[seq] then return drop_copy(inbox, senders, seq) end
    end
    from = '(' .. page[#page][1]
  end
end

-- Drops the oldest copy of the sender with the most copies. Returns false if only copies of backends
-- could be dropped for a copy of the user `by`; by is '' for a backend.
local function drop_one(inbox, senders, by)
  local sender_of, counts = read_senders(senders)
  local users, most, victim = 0, 0, nil
  for sender, count in pairs(counts) do
    users = users + count
    if count > most then most, victim = count, sender end
  end
  if by == '' and redis.call('XLEN', inbox) - users >= most then
    drop_backend(inbox, senders, sender_of)
  elseif victim then
    drop_oldest(inbox, senders, sender_of, victim)
  else
    return false
  end
  return true
end

-- Arguments of a copy:
-- ARGV   1  now
--        2  Unix ms at which the copy expires
--        3  1 if it expires before older copies, else 0
--        4  maximum number of copies in an inbox
--        5  payload bytes
--        6  record
--        7  origin, '' if there is none
--        8  user who sent the command, '' if it was a backend
--        9  maximum number of copies of one user in another user's inbox

-- Returns true if the sender has a full share of the inbox. Removes expired copies first.
local function has_share(inbox, expiry, senders, uid)
  local sender, share = ARGV[8], tonumber(ARGV[9])
  if sender == '' or sender == uid or redis.call('XLEN', inbox) < share then return false end
  if copies_of(senders, sender) < share then return false end
  expire_copies(inbox, expiry, senders, tonumber(ARGV[1]), 100)
  return copies_of(senders, sender) >= share
end

-- Returns true if a copy can be put without dropping a copy of the sender or of a backend.
local function has_room(inbox, expiry, senders, uid)
  if ARGV[8] == '' then return true end
  if has_share(inbox, expiry, senders, uid) then return false end
  if redis.call('XLEN', inbox) < tonumber(ARGV[4]) then return true end
  expire_copies(inbox, expiry, senders, tonumber(ARGV[1]), 100)
  return redis.call('XLEN', inbox) < tonumber(ARGV[4]) or redis.call('HLEN', senders) > 0
end

-- Puts a copy into an inbox. Publishes the copy last, so that a copy that could not be stored is
-- not published.
--   keys  index in KEYS of the user's inboxSeq, followed by inbox, inboxExpiry and inboxSenders
-- Returns the copy's inboxSeq, and the number of older copies that were dropped for it. The
-- inboxSeq is 0 if the inbox is full of copies of backends and a user sent the copy.
local function put_copy(id, keys, uid, topic)
  local inbox, expiry, senders = KEYS[keys + 1], KEYS[keys + 2], KEYS[keys + 3]
  local now, max_copies, sender, dropped = tonumber(ARGV[1]), tonumber(ARGV[4]), ARGV[8], 0
  local ttl_ms = int(math.max(1, tonumber(ARGV[2]) - now)) -- at least 1: the copy may have expired
  if has_share(inbox, expiry, senders, uid) then
    drop_oldest(inbox, senders, read_senders(senders), sender)
    dropped = 1
  end
  if redis.call('XLEN', inbox) >= max_copies then
    expire_copies(inbox, expiry, senders, now, 100)
    while redis.call('XLEN', inbox) >= max_copies do
      if not drop_one(inbox, senders, sender) then return 0, dropped end
      dropped = dropped + 1
    end
  end
  local seq = redis.call('INCR', KEYS[keys])
  if seq % TIDY_EVERY == 0 then expire_copies(inbox, expiry, senders, now, 100) end
  if ARGV[3] == '1' then
    redis.call('ZADD', expiry, ARGV[2], int(seq))
    extend_ttl(expiry, ttl_ms)
  end
  redis.call('XADD', inbox, int(seq) .. '-0', 'x', ARGV[2], 'i', int(id), 'n', ARGV[5], 'r', ARGV[6])
  extend_ttl(inbox, ttl_ms)
  if sender ~= '' then
    local count = copies_of(senders, sender)
    redis.call('HSET', senders, int(seq), sender, '#' .. sender, count + 1)
    extend_ttl(senders, ttl_ms)
  end
  redis.call('SPUBLISH', topic, command_frame(id, seq, ARGV[6], uid, ARGV[7]))
  return seq, dropped
end

-- Calls `put` for several users. A failure for one user does not affect the others.
--   users  ARGV contains uid and topic of each user, from index `users.first` to `users.last`
--   keys   index in KEYS of the first user's keys; each further user's keys begin `step` later
-- Returns the number of older copies that full inboxes dropped, the uids for which `put` failed,
-- and the first error ('' if there was none).
local function put_copies(put, id, users, keys, step)
  local dropped, failed_uids, failure = 0, {}, ''
  for at = users.first, users.last, 2 do
    local is_put, seq, dropped_now = pcall(put, id, keys, ARGV[at], ARGV[at + 1])
    if is_put then
      dropped = dropped + dropped_now
    else
      failed_uids[#failed_uids + 1] = ARGV[at]
      if failure == '' then failure = type(seq) == 'table' and seq.err or tostring(seq) end
    end
    keys = keys + step
  end
  return dropped, failed_uids, failure
end
