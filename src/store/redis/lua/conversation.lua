-- Reads the conversation of one user in one channel, with the whole newest message. If the caller
-- requests a change, first changes the conversation. The state is never changed in large groups or
-- in channels without messages.
--
-- KEYS   HEAD, LOG, RED_DOTS, POSITIONS of the channel
--        counter      message id counter
--        JOIN_SEQS, PERMANENT, TEMPORARY of a group, else absent
-- ARGV   see `conversation_state.lua`, then
--        change_kind  read, unread or delete; '' for none; `look_on` to continue the search for the
--                     newest shown message
--        value        only with a change or `look_on`
--                       read     seq of the last message to mark as read
--                       unread   number of messages to leave unread
--                       delete   seq of the last message to hide
--                       look_on  seq at which the search continues
--        known_head   newest seq in the previous reply; only with `look_on`
--        BUCKET       of the counter, -1 on a single server
-- Reply  nil if the channel is a group that does not exist, that is disbanded, or of which the user
--        is not a member; else
--        1-8 see `facts_of`
--        then, if there is a newest shown message,
--        9   messageId
--        10  seq
--        11  record
--        12  `stream_snapshot` of its stream, false if it has no stream
local counter = KEYS[5]
HEAD, LOG, RED_DOTS, POSITIONS, JOIN_SEQS, PERMANENT, TEMPORARY = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[7], KEYS[8]
local change_kind, value, known_head, BUCKET = ARGV[4], tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])

-- Returns the highest read position that leaves at least `target` messages unread. If fewer than
-- `target` messages after `state.deleted` can be unread, returns the position that leaves all of
-- them unread.
local function position_of(state, target)
  local kept = first_kept(state.deleted + 1, state.head)
  local unexpired = kept and expiring(kept.seq) or {}
  local function count_after(seq)
    if not kept or seq >= state.head then return 0 end
    -- A binary search is possible, because `unexpired` is in descending order.
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

-- Applies the change to the state in memory and in Redis. The change uses up a new message id. The
-- time in this id is not earlier than that of any previous change or message.
local function change(state)
  local seq = math.min(state.head, value)
  local read, deleted = math.max(state.deleted, seq), state.deleted
  if change_kind == 'delete' then read, deleted = math.max(state.read, seq), math.max(deleted, seq) end
  if change_kind == 'unread' then read = position_of(state, value) end
  if read == state.read and deleted == state.deleted then return end
  state.read, state.deleted, state.changed = read, deleted, message_ms(reserve_ids(counter, BUCKET, id_ms(BUCKET, NOW), 1))
  redis.call('HSET', POSITIONS, UID, table.concat({ int(read), int(deleted), int(state.head), int(state.changed) }, ' '))
end

local state = user_position()
if not state then return false end
local through = state.head
if change_kind == 'look_on' then
  -- The search continues only if no newer message has arrived.
  if tonumber(known_head) == state.head then through = value end
elseif change_kind ~= '' and state.head > 0 and not state.large then
  change(state)
end

local last, look_on = newest(state, through)
local reply = facts_of(state, last, look_on)
if not last then return reply end
reply[9], reply[10], reply[11] = last.id, last.seq, last.record
reply[12] = last.stream and stream_snapshot(HEAD, last.stream) or false
return reply
