-- The state of one user in one channel, read and counted in one script, behind a change where one
-- is asked for. Large groups and channels without a message stay as they are. Stands behind
-- channel_record.lua, entry.lua and snapshot.lua.
-- KEYS  1 head, 2 log, 3 redDots, 4 positions; of a group also 5 joinSeqs, 6 permanent, 7 temporary
-- ARGV  1 uid, 2 now (Unix ms), 3 retention (ms, 0: for ever), 4 channel type, 5 whether the reply
--   holds the whole of the newest message (1 or 0),
--       6 and 7 a change: read, unread or delete, and its seq or count; or `look_on`, the seq that
--         an earlier step said, and 8 the head it saw; or ''
-- Reply nil: a group the user is no member of; else head, read, unread, deleted, changedAtMs, how
--   many entries the log has, the seq through which to look
--       on for the newest shown message (0: all was looked at), then of that message, where there
--         is one: its id and seq, and its clientMsgNo and time, or
--       as a whole its record and `stream_snapshot` of its stream (false: it has no stream)
local UID, NOW, RETENTION = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local RED_DOT = 2
-- Of messages that expire so many count at most, and so many are looked at: some may have expired
-- and not be removed yet.
local MAX_EXPIRING, MAX_LOOKED_AT, PAGE = 1000, 5000, 1000
-- Entries that one step passes in search of one that is shown: expired ones that are not removed
-- yet may be many.
local MAX_PASSED = 1000

-- An entry of the log as `log_entry` has it; also no (clientMsgNo), at (ms), counts (1: among the
-- counted itself, else 0).
local function entry_of(raw)
  local entry = log_entry(raw)
  local no, at, flags = record_facts(entry)
  entry.no, entry.at = no, at
  entry.counts = not entry.expires and flags % (2 * RED_DOT) >= RED_DOT and 1 or 0
  return entry
end

local function is_past(entry) return RETENTION > 0 and NOW >= entry.at + RETENTION end

local function is_shown(entry)
  return not is_past(entry) and (not entry.expires or NOW < entry.expires)
end

local function entry_from(seq)
  local raw = redis.call('XRANGE', KEYS[2], int(seq), '+', 'COUNT', 1)[1]
  return raw and entry_of(raw)
end

-- The first entry from `seq` on that is not past retention, expired or not; nil: none. Entries pass
-- it in the order of seqs.
local function first_kept(seq, head)
  local first = entry_from(seq)
  if not first or not is_past(first) then return first end
  local low, high = first.seq + 1, head + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local there = entry_from(middle)
    if there and is_past(there) then low = there.seq + 1 else high = middle end
  end
  return entry_from(low)
end

-- join (head seq when the user became a member), large; nil: a group the user is no member of, or
-- none any more. info: of the channel's head.
local function membership(info)
  if ARGV[4] == '1' then return { join = 0, large = false } end
  local bits = bits_of(info)
  if bits == NO_RECORD or bit.band(bits, DISBAND) ~= 0 then return nil end
  local is_member = redis.call('SISMEMBER', KEYS[6], UID) == 1 or redis.call('SISMEMBER', KEYS[7], UID) == 1
  if not is_member then return nil end
  return { join = tonumber(redis.call('HGET', KEYS[5], UID) or '0'), large = bit.band(bits, LARGE) ~= 0 }
end

-- head, red (all that counts), large, read, deleted, changed (ms; 0: the user changed nothing);
-- nil: as of `membership`.
local function user_position()
  local head = redis.call('HMGET', KEYS[1], 'seq', 'red', 'info', '@' .. UID)
  local member = membership(head[3])
  if not member then return nil end
  local s = {
    head = tonumber(head[1] or '0'),
    red = tonumber(head[2] or '0'),
    large = member.large,
    deleted = 0,
    changed = 0,
  }
  s.read = s.head
  if s.large then return s end
  local own = tonumber(head[4] or '0')
  local position = redis.call('HGET', KEYS[4], UID)
  if not position then
    s.read = math.min(s.head, math.max(member.join, own))
    return s
  end
  local read, deleted, then_head, changed = string.match(position, '^(%d+) (%d+) (%d+) (%d+)$')
  s.deleted, s.changed = tonumber(deleted), tonumber(changed)
  s.read = math.max(tonumber(read), s.deleted)
  if own > tonumber(then_head) then s.read = math.max(s.read, own) end
  return s
end

-- Seqs from `from` on of messages with a red dot that expire and have not yet, newest first, within
-- the bounds.
local function expiring(from)
  local live, looked_at = {}, 0
  while looked_at < MAX_LOOKED_AT do
    local found = redis.call('ZREVRANGEBYSCORE', KEYS[3], '+inf', from, 'LIMIT', looked_at, PAGE)
    for _, member in ipairs(found) do
      local seq, expires = string.match(member, '^(%d+):(%d+)$')
      if NOW < tonumber(expires) then live[#live + 1] = tonumber(seq) end
      if #live == MAX_EXPIRING then return live end
    end
    if #found < PAGE then return live end
    looked_at = looked_at + PAGE
  end
  return live
end

-- How many messages count for as long as they are kept, from `first` (an entry or nil) to the head.
local function lasting(s, first)
  if not first then return 0 end
  return s.red - first.counted + first.counts
end

local function unread(s)
  if s.large or s.read >= s.head then return 0 end
  local first = first_kept(s.read + 1, s.head)
  if not first then return 0 end -- the messages that expire are in the log too
  return lasting(s, first) + #expiring(first.seq)
end

-- The newest entry behind `deleted` and through `to` that is shown, nil: none; and the seq through
-- which to look on in a step of its own, 0: all was looked at.
local function newest(s, to)
  local count, passed = 1, 0
  while to > s.deleted do
    local page = redis.call('XREVRANGE', KEYS[2], int(to), int(s.deleted + 1), 'COUNT', count)
    for _, raw in ipairs(page) do
      local entry = entry_of(raw)
      if is_past(entry) then return nil, 0 end -- so is what came before it
      if is_shown(entry) then return entry, 0 end
      to = entry.seq - 1
    end
    if #page < count then return nil, 0 end
    passed = passed + count
    if passed >= MAX_PASSED then return nil, math.max(to, 0) end
    count = math.min(count * 4, 64)
  end
  return nil, 0
end

-- The greatest position from `deleted` on with `wanted` unread behind it, or as many as there are.
local function position_of(s, wanted)
  local kept = first_kept(s.deleted + 1, s.head)
  local live = kept and expiring(kept.seq) or {}
  local function count_behind(seq)
    if not kept or seq >= s.head then return 0 end
    local newer, past = 0, #live + 1 -- live[newer] is the last one behind seq, for they go down
    while newer + 1 < past do
      local middle = math.floor((newer + past) / 2)
      if live[middle] > seq then newer = middle else past = middle end
    end
    local first = seq < kept.seq and kept or entry_from(seq + 1)
    return lasting(s, first) + newer
  end
  local count = math.min(wanted, count_behind(s.deleted))
  local low, high = s.deleted, s.head
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if count_behind(middle) >= count then low = middle else high = middle - 1 end
  end
  return low
end

local function change(s, kind, value)
  local read, deleted = math.max(s.deleted, math.min(s.head, value)), s.deleted
  if kind == 'delete' then read, deleted = s.head, s.head end
  if kind == 'unread' then read = position_of(s, value) end
  if read == s.read and deleted == s.deleted then return end
  s.read, s.deleted, s.changed = read, deleted, NOW
  redis.call('HSET', KEYS[4], UID, table.concat({ int(read), int(deleted), int(s.head), int(NOW) }, ' '))
end

local s = user_position()
if not s then return false end
local asked, value, through = ARGV[6], tonumber(ARGV[7]), s.head
if asked == 'look_on' then
  if tonumber(ARGV[8]) == s.head then through = value end -- else there is a newer message, to begin from
elseif asked ~= '' and s.head > 0 and not s.large then
  change(s, asked, value)
end

local last, look_on = newest(s, through)
local changed = math.max(last and last.at or 0, s.changed)
local reply = { s.head, s.read, unread(s), s.deleted, changed, redis.call('XLEN', KEYS[2]), look_on }
if not last then return reply end
reply[8], reply[9] = last.id, last.seq
if ARGV[5] == '0' then
  reply[10], reply[11] = last.no, last.at
else
  reply[10], reply[11] = last.record, last.stream and stream_snapshot(KEYS[1], last.stream) or false
end
return reply
