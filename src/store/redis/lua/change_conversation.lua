-- Applies what a user asks of a conversation and answers how it stands then. Large groups and channels without a message stay as they are.
-- KEYS: as of standing.lua. ARGV: as there; 6 kind of the change (read, unread or delete), 7 its seq or count.
-- Reply: as of conversation.lua.
local s = standing()
if not s then return false end

-- The greatest position from `deleted` on with `wanted` unread behind it, or as many as there are.
local function position_of(wanted)
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

local function changed()
  local kind, value = ARGV[6], tonumber(ARGV[7])
  if kind == 'delete' then return s.head, s.head end
  if kind == 'unread' then return position_of(value), s.deleted end
  return math.max(s.deleted, math.min(s.head, value)), s.deleted
end

if s.head > 0 and not s.large then
  local read, deleted = changed()
  if read ~= s.read or deleted ~= s.deleted then
    s.read, s.deleted, s.changed = read, deleted, NOW
    local position = { int(read), int(deleted), int(s.head), int(NOW) }
    redis.call('HSET', KEYS[4], UID, table.concat(position, ' '))
  end
end
return conversation_reply(s, s.head)
