-- Functions shared by the scripts that compute the state of one user's conversation in a channel. A
-- script sets the names of the keys before it calls these functions.
--
-- The first arguments of these scripts are
--   UID
--   NOW        Unix ms
--   RETENTION  ms, 0 means no limit
local UID, NOW, RETENTION = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
-- Names of the channel's keys. For a personal channel, JOIN_SEQS is nil, and PERMANENT and
-- TEMPORARY are not used.
local HEAD, LOG, RED_DOTS, POSITIONS, JOIN_SEQS, PERMANENT, TEMPORARY
local inspected_entries = 0
local RED_DOT = 2
-- Limits on messages with an expiry time. The unread count includes at most MAX_EXPIRING of them.
-- At most MAX_EXAMINED are examined, PAGE at a time, because many of them may already have expired.
local MAX_EXPIRING, MAX_EXAMINED, PAGE = 1000, 5000, 1000
-- Number of skipped entries after which a call interrupts its search, because the log may contain
-- many expired entries.
local MAX_PASSED = 1000

-- Decodes a log entry. `counts` is 1 if the message has a red dot and does not expire, else 0.
local function entry_of(raw_entry)
  local entry = log_entry(raw_entry)
  local client_msg_no, accepted_ms, flags = record_facts(entry)
  entry.client_msg_no, entry.accepted_ms = client_msg_no, accepted_ms
  entry.counts = not entry.expires and flags % (2 * RED_DOT) >= RED_DOT and 1 or 0
  return entry
end

local function is_past(entry) return RETENTION > 0 and NOW >= entry_ms(entry) + RETENTION end

local function is_shown(entry)
  return not is_past(entry) and (not entry.expires or NOW < entry.expires)
end

local function entry_from(seq)
  local raw_entry = redis.call('XRANGE', LOG, int(seq), '+', 'COUNT', '1')[1]
  return raw_entry and entry_of(raw_entry)
end

-- Returns the first entry at or after `seq` that is not past the retention time. A binary search is
-- possible, because messages reach the retention time in the order of their seqs.
local function first_kept(seq, head)
  local first = entry_from(seq)
  if not first or not is_past(first) then return first end
  local low, high = first.seq + 1, head + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = entry_from(middle)
    if entry and is_past(entry) then low = entry.seq + 1 else high = middle end
  end
  return entry_from(low)
end

-- Returns nil if the channel is a group that does not exist, that is disbanded, or of which the
-- user is not a member. Otherwise, returns a table:
--   head     newest seq of the channel
--   red      number of the channel's messages that have a red dot and do not expire
--   large    true if the channel is a large group, in which all messages count as read
--   read     seq through which the user has read
--   deleted  seq through which the user has deleted
--   changed  Unix ms of the user's last change, or 0
local function user_position()
  local head = redis.call('HMGET', HEAD, 'seq', 'red', 'info', '@' .. UID, 'imported')
  local state = { head = tonumber(head[1] or '0'), red = tonumber(head[2] or '0'), large = false, deleted = 0, changed = 0 }
  if JOIN_SEQS then
    local bits = bits_of(head[3])
    if bits == NO_RECORD or bit.band(bits, DISBAND) ~= 0 then return nil end
    if redis.call('SISMEMBER', PERMANENT, UID) == 0 and redis.call('SISMEMBER', TEMPORARY, UID) == 0 then return nil end
    state.large = bit.band(bits, LARGE) ~= 0
  end
  state.read = state.head
  if state.large then return state end
  local own_seq = tonumber(head[4] or '0')
  local position = redis.call('HGET', POSITIONS, UID)
  if position then
    state.read, state.deleted, state.changed = marks_of(position, own_seq)
  else
    local join_seq = JOIN_SEQS and own_seq < state.head and tonumber(redis.call('HGET', JOIN_SEQS, UID) or '0') or 0
    state.read = math.min(state.head, math.max(join_seq, own_seq, tonumber(head[5] or '0')))
  end
  return state
end

-- Returns the seqs, `from` or higher, of the unexpired messages with a red dot and an expiry time,
-- newest first. See MAX_EXPIRING and MAX_EXAMINED for the limits.
local function expiring(from)
  local unexpired, inspected = {}, 0
  while inspected < MAX_EXAMINED do
    local page = redis.call('ZREVRANGEBYSCORE', RED_DOTS, '+inf', from, 'LIMIT', inspected, PAGE)
    inspected_entries = inspected_entries + #page
    for _, member in ipairs(page) do
      local seq, expires = string.match(member, '^(%d+):(%d+)$')
      if NOW < tonumber(expires) then unexpired[#unexpired + 1] = tonumber(seq) end
      if #unexpired == MAX_EXPIRING then return unexpired end
    end
    if #page < PAGE then return unexpired end
    inspected = inspected + PAGE
  end
  return unexpired
end

-- Returns the number of messages with a red dot and without an expiry time, from the entry `first`
-- to the newest message. Returns 0 if `first` is nil.
local function lasting_count(state, first)
  if not first then return 0 end
  return state.red - first.counted + first.counts
end

-- Returns the number of unread messages. `last` is the newest shown entry, nil if none was found.
local function unread(state, last)
  if state.large or state.read >= state.head then return 0 end
  local first = last and last.seq == state.read + 1 and last or first_kept(state.read + 1, state.head)
  if not first then return 0 end -- no unread message is left in the log
  local count = lasting_count(state, first)
  if state.red == state.head then return count end -- no message with a red dot expires
  return count + #expiring(first.seq)
end

-- Searches for the newest shown entry up to the seq `to`. Returns two values. The first is the
-- entry, nil if the search has found none. The second is the seq at which the next call continues
-- the search, 0 if the search is complete.
local function newest(state, to)
  local count, passed = 1, 0
  while to > state.deleted do
    local page = redis.call('XREVRANGE', LOG, int(to), int(state.deleted + 1), 'COUNT', int(count))
    for _, raw_entry in ipairs(page) do
      local entry = entry_of(raw_entry)
      if is_past(entry) then return nil, 0 end -- all earlier entries are past retention too
      if is_shown(entry) then return entry, 0 end
      to = entry.seq - 1
    end
    if #page < count then return nil, 0 end
    passed, inspected_entries = passed + count, inspected_entries + count
    if passed >= MAX_PASSED then return nil, math.max(to, 0) end
    count = math.min(count * 4, 64)
  end
  return nil, 0
end

-- Returns the first eight fields of a conversation's reply:
--   1  newest seq
--   2  readSeq
--   3  number of unread messages
--   4  deletedSeq
--   5  changedAtMs   time in the id of the newest shown message or of the user's last change,
--                    whichever is later
--   6  0 if the log is empty, else a positive number
--   7  seq at which the search for the newest shown message continues, 0 if it is complete
--   8  1 in a large group, else 0
-- `last` and `look_on` are the results of `newest`.
local function facts_of(state, last, look_on)
  local changed = math.max(last and message_ms(last.id) or 0, state.changed)
  local length = last and 1 or redis.call('XLEN', LOG)
  return { state.head, state.read, unread(state, last), state.deleted, changed, length, look_on, state.large and 1 or 0 }
end
