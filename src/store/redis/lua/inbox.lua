-- Writes command inboxes (keys: `ports.ts`). Placed in front of the scripts that write them.
local TIDY_EVERY = 32 -- number of copies after which expired copies are removed

-- Removes expired copies: at most `count` that are listed in `expiry`, and at most `count` from the
-- beginning of the inbox. `expiry` lists the copies that expire before older copies. The others
-- expire in the order in which they were added.
local function expire_copies(inbox, expiry, now, count)
  local expired_seqs = redis.call('ZRANGEBYSCORE', expiry, '-inf', int(now), 'LIMIT', 0, count)
  for _, seq in ipairs(expired_seqs) do
    redis.call('XDEL', inbox, seq .. '-0')
    redis.call('ZREM', expiry, seq)
  end
  for _ = 1, count do
    local oldest = redis.call('XRANGE', inbox, '-', '+', 'COUNT', 1)[1]
    if not oldest or tonumber(oldest[2][2]) > now then return end
    redis.call('XDEL', inbox, oldest[1])
  end
end

local function extend_ttl(key, ms)
  if redis.call('PEXPIRE', key, ms, 'GT') == 0 then redis.call('PEXPIRE', key, ms, 'NX') end
end

-- Puts a copy into an inbox. Publishes the copy last, so that a copy that could not be stored is
-- not published.
--   keys  index in KEYS of the user's inboxSeq, followed by inbox and inboxExpiry
-- ARGV   1  now
--        2  Unix ms at which the copy expires
--        3  1 if it expires before older copies, else 0
--        4  maximum number of copies in an inbox
--        5  payload bytes
--        6  record
--        7  origin, '' if there is none
-- Returns the copy's inboxSeq, and the number of older copies that a full inbox dropped.
local function put_copy(id, keys, uid, topic)
  local inbox, expiry = KEYS[keys + 1], KEYS[keys + 2]
  local now, max_copies, dropped = tonumber(ARGV[1]), tonumber(ARGV[4]), 0
  local ttl_ms = int(math.max(1, tonumber(ARGV[2]) - now)) -- at least 1: the copy may have expired
  local is_full = redis.call('XLEN', inbox) >= max_copies
  local seq = redis.call('INCR', KEYS[keys])
  if is_full or seq % TIDY_EVERY == 0 then expire_copies(inbox, expiry, now, 100) end
  if is_full then dropped = redis.call('XTRIM', inbox, 'MAXLEN', max_copies - 1) end
  if ARGV[3] == '1' then
    redis.call('ZADD', expiry, ARGV[2], int(seq))
    extend_ttl(expiry, ttl_ms)
  end
  redis.call('XADD', inbox, int(seq) .. '-0', 'x', ARGV[2], 'i', int(id), 'n', ARGV[5], 'r', ARGV[6])
  extend_ttl(inbox, ttl_ms)
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
