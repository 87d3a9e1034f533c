-- Who may send where, behind the tables made of `broker/permissions.ts` (`permission-tables.ts`) and `channel_record.lua`: the facts are reduced to a few
-- bits, which say where in the table the decision stands. Reads only.
-- GROUP_REFUSALS: ban 1, disband 2, sendBan 4 as in a record, 8 the sender is a member, 16 the sender is the system.
-- PERSON_REFUSALS: of the receiver's record ban 1, disband 2 (or of the sender's), allowStranger 8, of the sender's sendBan 4, 16 the sender is a
-- stranger, 32 the sender is the system.
local OF_GROUP, OF_RECEIVER, OF_SENDER = 1 + 2 + 4, 1 + 2 + 8, 2 + 4
local MEMBER, STRANGER = 8, 16
local GROUP_SYSTEM, PERSON_SYSTEM = 16, 32

-- Those of `wanted` that are set in a record; without one none is.
local function flags_of(bits, wanted) return bits == NO_RECORD and 0 or bit.band(bits, wanted) end

-- base: what the keys of the channel begin with.
local function is_member(base, key, uid)
  return redis.call('SISMEMBER', base .. 'perm:' .. key, uid) == 1 or redis.call('SISMEMBER', base .. 'temp:' .. key, uid) == 1
end

-- The digit at `bits`: 0: may send, else which of the refusals it is.
local function decision(decisions, bits) return string.byte(decisions, bits + 1) - 48 end

-- info: of the group's head, as its other facts.
local function group_refusal(info, base, key, uid)
  local record = bits_of(info)
  local bits = flags_of(record, OF_GROUP)
  if uid == SYSTEM_UID then return decision(GROUP_REFUSALS, bits + GROUP_SYSTEM) end
  local is_subscriber = record ~= NO_RECORD and is_member(base, key, uid)
  return decision(GROUP_REFUSALS, is_subscriber and bits + MEMBER or bits)
end

-- The receiver, who has a record and is somebody else, lists contacts, and `uid` is none of them.
local function is_stranger(base, key, uid)
  return not is_member(base, key, uid) and redis.call('EXISTS', base .. 'perm:' .. key, base .. 'temp:' .. key) > 0
end

-- Of the users of a personal channel: what the keys of their records begin with, and their keys.
local function person_refusal(to_base, to, from_base, from, uid)
  local receiver = record_bits(to_base .. 'head:' .. to)
  local sender = to == from and receiver or record_bits(from_base .. 'head:' .. from)
  local bits = bit.bor(flags_of(receiver, OF_RECEIVER), flags_of(sender, OF_SENDER))
  if uid == SYSTEM_UID then return decision(PERSON_REFUSALS, bits + PERSON_SYSTEM) end
  if to ~= from and receiver ~= NO_RECORD and is_stranger(to_base, to, uid) then bits = bits + STRANGER end
  return decision(PERSON_REFUSALS, bits)
end
