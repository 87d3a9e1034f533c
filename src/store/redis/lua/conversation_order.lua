-- Finds the newest message of each channel. A user's conversations are ordered by these messages.
-- Read-only.
--
-- KEYS   counter      message id counter. All channels are in its slot, or all keys are on one
--                     server.
-- ARGV   UID          user whose conversations are ordered
--        SINCE        Unix ms: omits conversations that have not changed since this time; 0 omits
--                     none of them
--        ONLY_UNREAD  1 to omit conversations that certainly have no unread messages, else 0
--        then for each key prefix
--          base       the prefix
--          channels   keys of the channels with this prefix, separated by newlines
-- Reply  1  newest id of the counter
--        2  for each channel the field `last` of its head, separated by spaces; 0 if the head has
--           no such field or the conversation is omitted
local counter = KEYS[1]
local UID, SINCE, ONLY_UNREAD = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local FIRST_BASE = 4
local GROUP = 50 -- first byte of the key of a group

-- Returns the field `last` of the channel's head, '0' if the conversation is omitted.
local function last_if_listed(head, base, key)
  local position = redis.call('HGET', base .. 'positions:' .. key, UID)
  -- This cheap test comes first, because most users have read most of their conversations.
  if position and ONLY_UNREAD and tonumber(string.match(position, '^%d+')) >= tonumber(redis.call('HGET', head, 'seq') or '0') then return '0' end
  local fields = redis.call('HMGET', head, 'last', 'info', '@' .. UID, 'imported')
  local last, is_large, own_seq = fields[1], fields[2] and bit.band(bits_of(fields[2]), LARGE) ~= 0, tonumber(fields[3] or '0')
  if not last then return '0' end
  local seq, id = string.match(last, '^(%d+)-(%d+)$')
  seq = tonumber(seq)
  local read, deleted, changed = is_large and seq or own_seq, 0, 0
  if position and not is_large then read, deleted, changed = marks_of(position, own_seq) end
  if deleted >= seq or math.max(message_ms(tonumber(id)), changed) < SINCE then return '0' end
  if not ONLY_UNREAD then return last end
  if not position then read = math.max(read, tonumber(fields[4] or '0')) end
  if not position and read < seq and string.byte(key) == GROUP then
    read = tonumber(redis.call('HGET', base .. 'joinSeqs:' .. key, UID) or '0')
  end
  return read < seq and last or '0'
end

local is_filtered, order = SINCE > 0 or ONLY_UNREAD, {}
for at = FIRST_BASE, #ARGV, 2 do
  local base, channels, count = ARGV[at], ARGV[at + 1], #order
  local heads = base .. 'head:'
  for key in string.gmatch(channels, '[^\n]+') do
    count = count + 1
    order[count] = is_filtered and last_if_listed(heads .. key, base, key) or not is_filtered and redis.call('HGET', heads .. key, 'last') or '0'
  end
end
return { redis.call('GET', counter) or '0', table.concat(order, ' ') }
