-- Writing command inboxes (keys: `parts.ts`). Put in front of the steps that do.
local TIDY_EVERY = 32 -- copies between looks for what is past its time

-- Removes expired copies, at most about `most`: those that were to end early, and the oldest. Used
-- before copies are counted. The copies of an inbox otherwise end in the order in which they came.
local function expire_copies(inbox, expiry, now, most)
  local due = redis.call('ZRANGEBYSCORE', expiry, '-inf', int(now), 'LIMIT', 0, most)
  for _, seq in ipairs(due) do
    redis.call('XDEL', inbox, seq .. '-0')
    redis.call('ZREM', expiry, seq)
  end
  for _ = 1, most do
    local first = redis.call('XRANGE', inbox, '-', '+', 'COUNT', 1)[1]
    if not first or tonumber(first[2][2]) > now then return end
    redis.call('XDEL', inbox, first[1])
  end
end

-- Redis may reclaim the key after `ms`, or later where that was said before.
local function keep(key, ms)
  if redis.call('PEXPIRE', key, ms, 'GT') == 0 then redis.call('PEXPIRE', key, ms, 'NX') end
end

-- Puts a copy of command `id` into an inbox and publishes it; what may fail comes first. keys: the
-- place in KEYS of the user's inboxSeq, behind it inbox and inboxExpiry. ARGV: 1 now, 2 endMs, 3 1:
-- before others of its time, else 0, 4 copies an inbox holds, 5 payload bytes, 6 record, 7 origin
-- or ''.
-- Returns the copy's seq, and how many older ones left a full inbox.
local function put_copy(id, keys, uid, topic)
  local inbox, expiry = KEYS[keys + 1], KEYS[keys + 2]
  local now, most, dropped = tonumber(ARGV[1]), tonumber(ARGV[4]), 0
  local left = int(math.max(1, tonumber(ARGV[2]) - now)) -- it may have ended on the way
  local is_full = redis.call('XLEN', inbox) >= most
  local seq = redis.call('INCR', KEYS[keys])
  if is_full or seq % TIDY_EVERY == 0 then expire_copies(inbox, expiry, now, 100) end
  if is_full then dropped = redis.call('XTRIM', inbox, 'MAXLEN', most - 1) end
  if ARGV[3] == '1' then
    redis.call('ZADD', expiry, ARGV[2], int(seq))
    keep(expiry, left)
  end
  redis.call('XADD', inbox, int(seq) .. '-0', 'x', ARGV[2], 'i', int(id), 'n', ARGV[5], 'r', ARGV[6])
  keep(inbox, left)
  redis.call('SPUBLISH', topic, command_frame(id, seq, ARGV[6], uid, ARGV[7]))
  return seq, dropped
end

-- Calls `put` for the users of whom uid and topic stand in ARGV from `first` to `last`, whatever
-- becomes of one of them; keys: the place in KEYS of the first one's, `step` further those of the
-- next. Returns how many older copies left full inboxes, whom it failed for, and the first error
-- ('': none).
local function put_copies(put, id, users, keys, step)
  local dropped, failed, cause = 0, {}, ''
  for arg = users.first, users.last, 2 do
    local done, seq, lost = pcall(put, id, keys, ARGV[arg], ARGV[arg + 1])
    if done then
      dropped = dropped + lost
    else
      failed[#failed + 1] = ARGV[arg]
      if cause == '' then cause = type(seq) == 'table' and seq.err or tostring(seq) end
    end
    keys = keys + step
  end
  return dropped, failed, cause
end
