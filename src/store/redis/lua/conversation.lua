-- Reads the conversation state of one user in one channel, after changing it if the caller asks for
-- a change. The state is never changed in large groups or in channels without messages.
--
-- KEYS   1  head
--        2  log
--        3  redDots
--        4  positions
--        5  counter of message ids
--        6  joinSeqs, of a group
--        7  permanent, of a group
--        8  temporary, of a group
-- ARGV   1  uid
--        2  now           Unix ms
--        3  retention     ms, 0 means no limit
--        4  channel type
--        5  1 if the reply contains the whole newest message, else 0
--        6  change        read, unread or delete; `look_on` to continue a search; '' for none
--        7  value         only with a change or `look_on`
--                           read     seq of the last message to mark as read
--                           unread   number of messages to leave unread
--                           delete   ignored
--                           look_on  seq at which the search continues
--        8  head seq      newest seq in the previous reply; only with `look_on`
--        9  bucket        of the counter, -1 on a single server
-- Reply  nil if the channel is a group that does not exist or is disbanded, or if the user is not a
--        member of the group, else
--        1  newest seq
--        2  readSeq
--        3  number of unread messages
--        4  deletedSeq
--        5  changedAtMs   time in the id of the newest shown message or of the user's last change,
--                         whichever is later
--        6  number of entries in the log
--        7  seq at which the search for the newest shown message continues, 0 if it is complete
--        then, if there is a newest shown message,
--        8  messageId
--        9  seq
--        10 clientMsgNo, or the record if ARGV[5] is 1
--        11 Unix ms of its acceptance, or, if ARGV[5] is 1, `stream_snapshot` of its stream or
--           false
local UID, NOW, RETENTION, BUCKET = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[9])
local RED_DOT = 2
-- Limits on messages with an expiry time. The unread count includes at most MAX_EXPIRING of them.
-- At most MAX_LOOKED_AT are inspected, PAGE at a time, because many may have expired already.
local MAX_EXPIRING, MAX_LOOKED_AT, PAGE = 1000, 5000, 1000
-- Number of skipped entries after which a call ends its search, because the log may still contain
-- many expired entries.
local MAX_PASSED = 1000

-- `counts` is 1 if the message has a red dot and does not expire, else 0.
local function entry_of(raw_entry)
  local entry = log_entry(raw_entry)
  local client_msg_no, accepted_ms, flags = record_facts(entry)
  entry.client_msg_no, entry.accepted_ms = client_msg_no, accepted_ms
  entry.counts = not entry.expires and flags % (2 * RED_DOT) >= RED_DOT and 1 or 0
  return entry
end

local function is_past(entry) return RETENTION > 0 and NOW >= message_ms(entry.id) + RETENTION end

local function is_shown(entry)
  return not is_past(entry) and (not entry.expires or NOW < entry.expires)
end

local function entry_from(seq)
  local raw_entry = redis.call('XRANGE', KEYS[2], int(seq), '+', 'COUNT', 1)[1]
  return raw_entry and entry_of(raw_entry)
end

-- A binary search is possible: messages reach the retention time in the order of their seqs.
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

-- `join` is the seq of the group's newest message when the user became a member.
local function membership(info)
  if ARGV[4] == '1' then return { join = 0, large = false } end
  local bits = bits_of(info)
  if bits == NO_RECORD or bit.band(bits, DISBAND) ~= 0 then return nil end
  local is_member = redis.call('SISMEMBER', KEYS[7], UID) == 1 or redis.call('SISMEMBER', KEYS[8], UID) == 1
  if not is_member then return nil end
  return { join = tonumber(redis.call('HGET', KEYS[6], UID) or '0'), large = bit.band(bits, LARGE) ~= 0 }
end

-- Returns nil if `membership` returns nil, else the user's state:
--   red      number of the channel's messages that have a red dot and do not expire
--   read     seq through which the user has read
--   deleted  seq through which the user has deleted
--   changed  Unix ms of the user's last change, 0 if there was none
local function user_position()
  local head = redis.call('HMGET', KEYS[1], 'seq', 'red', 'info', '@' .. UID)
  local member = membership(head[3])
  if not member then return nil end
  local state = {
    head = tonumber(head[1] or '0'),
    red = tonumber(head[2] or '0'),
    large = member.large,
    deleted = 0,
    changed = 0,
  }
  state.read = state.head
  if state.large then return state end
  local own_seq = tonumber(head[4] or '0')
  local position = redis.call('HGET', KEYS[4], UID)
  if not position then
    state.read = math.min(state.head, math.max(member.join, own_seq))
    return state
  end
  local read, deleted, head_then, changed = string.match(position, '^(%d+) (%d+) (%d+) (%d+)$')
  state.deleted, state.changed = tonumber(deleted), tonumber(changed)
  state.read = math.max(tonumber(read), state.deleted)
  if own_seq > tonumber(head_then) then state.read = math.max(state.read, own_seq) end
  return state
end

-- Returns the seqs of the unexpired red-dot messages with an expiry time, newest first.
local function expiring(from)
  local unexpired, inspected = {}, 0
  while inspected < MAX_LOOKED_AT do
    local page = redis.call('ZREVRANGEBYSCORE', KEYS[3], '+inf', from, 'LIMIT', inspected, PAGE)
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

-- Returns the number of messages from `first` (an entry) through the newest that have a red dot and
-- do not expire, 0 if `first` is nil.
local function lasting_count(state, first)
  if not first then return 0 end
  return state.red - first.counted + first.counts
end

local function unread(state)
  if state.large or state.read >= state.head then return 0 end
  local first = first_kept(state.read + 1, state.head)
  if not first then return 0 end -- a message that is still shown would be in the log
  return lasting_count(state, first) + #expiring(first.seq)
end

-- The second value is the seq at which the next call continues the search, 0 if the search is
-- complete.
local function newest(state, to)
  local count, passed = 1, 0
  while to > state.deleted do
    local page = redis.call('XREVRANGE', KEYS[2], int(to), int(state.deleted + 1), 'COUNT', count)
    for _, raw_entry in ipairs(page) do
      local entry = entry_of(raw_entry)
      if is_past(entry) then return nil, 0 end -- all earlier entries are past retention too
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

-- Returns the highest read position that leaves at least `target` messages unread. If fewer than
-- `target` messages after `state.deleted` can be unread, the position leaves all of them unread.
local function position_of(state, target)
  local kept = first_kept(state.deleted + 1, state.head)
  local unexpired = kept and expiring(kept.seq) or {}
  local function count_after(seq)
    if not kept or seq >= state.head then return 0 end
    -- A binary search is possible, because the list is in descending order.
    local newer_count, end_index = 0, #unexpired + 1
    while newer_count + 1 < end_index do
      local middle = math.floor((newer_count + end_index) / 2)
      if unexpired[middle] > seq then newer_count = middle else end_index = middle end
    end
    local first = seq < kept.seq and kept or entry_from(seq + 1)
    return lasting_count(state, first) + newer_count
  end
  local count = math.min(target, count_after(state.deleted))
  local low, high = state.deleted, state.head
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if count_after(middle) >= count then low = middle else high = middle - 1 end
  end
  return low
end

-- Applies a change to the state in memory and in Redis. The change takes a new message id, whose
-- time is not lower than that of any change or message before it.
local function change(state, kind, value)
  local read, deleted = math.max(state.deleted, math.min(state.head, value)), state.deleted
  if kind == 'delete' then read, deleted = state.head, state.head end
  if kind == 'unread' then read = position_of(state, value) end
  if read == state.read and deleted == state.deleted then return end
  state.read, state.deleted, state.changed = read, deleted, message_ms(reserve_ids(KEYS[5], BUCKET, id_ms(BUCKET, NOW), 1))
  redis.call('HSET', KEYS[4], UID, table.concat({ int(read), int(deleted), int(state.head), int(state.changed) }, ' '))
end

local state = user_position()
if not state then return false end
local change_kind, value, through = ARGV[6], tonumber(ARGV[7]), state.head
if change_kind == 'look_on' then
  -- Continues the search only if no newer message has arrived.
  if tonumber(ARGV[8]) == state.head then through = value end
elseif change_kind ~= '' and state.head > 0 and not state.large then
  change(state, change_kind, value)
end

local last, look_on = newest(state, through)
local changed = math.max(last and message_ms(last.id) or 0, state.changed)
local reply = { state.head, state.read, unread(state), state.deleted, changed, redis.call('XLEN', KEYS[2]), look_on }
if not last then return reply end
reply[8], reply[9] = last.id, last.seq
if ARGV[5] == '0' then
  reply[10], reply[11] = last.client_msg_no, last.accepted_ms
else
  reply[10], reply[11] = last.record, last.stream and stream_snapshot(KEYS[1], last.stream) or false
end
return reply
