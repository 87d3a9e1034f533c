-- Who may send where, behind the tables made of `broker/permissions.ts` (`permission-tables.ts`)
-- and `channel_record.lua`: the facts are reduced to a few bits, which say where in the table the
-- decision stands, a digit: 0: may send, else which of the refusals it is. Reads only.
-- GROUP_REFUSALS: ban 1, disband 2, sendBan 4 as in a record, 8 the sender is a member, 16 the
-- sender is the system. PERSON_REFUSALS: of the receiver's record ban 1, disband 2 (or of the
-- sender's), allowStranger 8, of the sender's sendBan 4, 16 the sender is a stranger, 32 the sender
-- is the system.
local OF_GROUP = 7 -- ban, disband, sendBan
local OF_RECEIVER = 11 -- ban, disband, allowStranger
local OF_SENDER = 6 -- disband, sendBan
local MEMBER = 8
local STRANGER = 16
local GROUP_SYSTEM = 16
local PERSON_SYSTEM = 32

-- base: what the keys of the channel whose members these are begin with.
local function is_member(base, key, uid)
  if redis.call('SISMEMBER', base .. 'permanent:' .. key, uid) == 1 then return true end
  return redis.call('SISMEMBER', base .. 'temporary:' .. key, uid) == 1
end

-- info: of the group's head, as its other facts.
local function group_refusal(info, base, key, uid)
  local record = bits_of(info)
  local bits = record == NO_RECORD and 0 or bit.band(record, OF_GROUP)
  if uid == SYSTEM_UID then
    bits = bits + GROUP_SYSTEM
  elseif record ~= NO_RECORD and is_member(base, key, uid) then
    bits = bits + MEMBER
  end
  return string.byte(GROUP_REFUSALS, bits + 1) - 48
end

-- Of the users of a personal channel: what the keys of their records begin with, and their keys.
local function person_refusal(to_base, to, from_base, from, uid)
  local receiver = record_bits(to_base .. 'head:' .. to)
  local sender = to == from and receiver or record_bits(from_base .. 'head:' .. from)
  local bits = receiver == NO_RECORD and 0 or bit.band(receiver, OF_RECEIVER)
  if sender ~= NO_RECORD then bits = bit.bor(bits, bit.band(sender, OF_SENDER)) end
  if uid == SYSTEM_UID then
    bits = bits + PERSON_SYSTEM
  elseif to ~= from and receiver ~= NO_RECORD and not is_member(to_base, to, uid) then
    if redis.call('EXISTS', to_base .. 'permanent:' .. to, to_base .. 'temporary:' .. to) > 0 then bits = bits + STRANGER end
  end
  return string.byte(PERSON_REFUSALS, bits + 1) - 48
end
