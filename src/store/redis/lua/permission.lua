-- Decides whether a user may send a message. Uses two tables that `permission-tables.ts` generates.
-- A table is a string with one digit for each combination of facts: 0 if the user may send, else
-- the number of the refusal. The index of a digit is the sum of the bits of the facts that are
-- true. Read-only.
--
--   bit  GROUP_REFUSALS               PERSON_REFUSALS
--     1  ban of the group             ban of the receiver
--     2  disband of the group         disband of the receiver or the sender
--     4  sendBan of the group         sendBan of the sender
--     8  the sender is a member       allowStranger of the receiver
--    16                               the sender is a stranger
--    32  the sender is exempt         the sender is exempt
--    64  the sender is denylisted     the sender is denylisted
--   128  the allowlist applies and    the allowlist applies and
--        lacks the sender             lacks the sender
local GROUP_BITS = 7 -- ban, disband, sendBan
local RECEIVER_BITS = 11 -- ban, disband, allowStranger
local SENDER_BITS = 6 -- disband, sendBan
local MEMBER = 8
local STRANGER = 16
local SYSTEM = 32
local DENIED = 64
local UNLISTED = 128

local function is_member(base, key, uid)
  if redis.call('SISMEMBER', base .. 'permanent:' .. key, uid) == 1 then return true end
  return redis.call('SISMEMBER', base .. 'temporary:' .. key, uid) == 1
end

-- Values of `check`. The value 1 means that the ordinary rules apply.
local FRIENDS = 2 -- the allowlist of the receiver applies too
local EXEMPT = 3 -- the sender is a system account
local OPEN = 4 -- the receiver is a system account
local NAMED = 5 -- a backend sends in a user's name: the user need not be a member

-- Returns the number of the refusal, or 0 if the user may send. `info` and `lists` are fields of
-- the group's head.
local function group_refusal(info, lists, base, key, uid, check)
  local record = bits_of(info)
  local bits = record == NO_RECORD and 0 or bit.band(record, GROUP_BITS)
  if uid == SYSTEM_UID or check == EXEMPT then
    bits = bits + SYSTEM
  elseif record ~= NO_RECORD then
    if check == NAMED or is_member(base, key, uid) then bits = bits + MEMBER end
    if lists then
      if redis.call('SISMEMBER', base .. 'denylist:' .. key, uid) == 1 then bits = bits + DENIED end
      if bit.band(tonumber(lists), HAS_ALLOWLIST) ~= 0 and redis.call('SISMEMBER', base .. 'allowlist:' .. key, uid) == 0 then bits = bits + UNLISTED end
    end
  end
  return string.byte(GROUP_REFUSALS, bits + 1) - 48
end

-- Returns the number of the refusal, or 0 if the user may send. `to` and `from` are the channel
-- keys of the receiver's and the sender's records.
local function person_refusal(to_base, to, from_base, from, uid, check)
  local receiver_head = redis.call('HMGET', to_base .. 'head:' .. to, 'info', 'lists')
  local receiver, lists = bits_of(receiver_head[1]), receiver_head[2]
  local sender = to == from and receiver or record_bits(from_base .. 'head:' .. from)
  local bits = receiver == NO_RECORD and 0 or bit.band(receiver, RECEIVER_BITS)
  if sender ~= NO_RECORD then bits = bit.bor(bits, bit.band(sender, SENDER_BITS)) end
  if uid == SYSTEM_UID or check == EXEMPT then
    bits = bits + SYSTEM
  elseif to ~= from and check ~= OPEN and to ~= '1:' .. SYSTEM_UID then
    if receiver ~= NO_RECORD and not is_member(to_base, to, uid) then
      if redis.call('EXISTS', to_base .. 'permanent:' .. to, to_base .. 'temporary:' .. to) > 0 then bits = bits + STRANGER end
    end
    if lists and redis.call('SISMEMBER', to_base .. 'denylist:' .. to, uid) == 1 then bits = bits + DENIED end
    if check == FRIENDS and redis.call('SISMEMBER', to_base .. 'allowlist:' .. to, uid) == 0 then bits = bits + UNLISTED end
  end
  return string.byte(PERSON_REFUSALS, bits + 1) - 48
end
