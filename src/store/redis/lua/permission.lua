-- Who may send where, behind the tables made of `broker/permissions.ts` (`permission-tables.ts`) and `channel_record.lua`: the facts are reduced to a few
-- bits, which say where in the table the decision stands. Reads only; the records that it read are kept in `facts` for the messages of one call.
-- GROUP_REFUSALS: ban 1, disband 2, sendBan 4 as in a record, 8 the sender is a member, 16 the sender is the system.
-- PERSON_REFUSALS: of the receiver's record ban 1, disband 2 (or of the sender's), allowStranger 8, of the sender's sendBan 4, 16 the sender is a
-- stranger, 32 the sender is the system.
local BAN, SEND_BAN, ALLOW_STRANGER = 1, 4, 8
local MEMBER, STRANGER = 8, 16
local GROUP_SYSTEM, PERSON_SYSTEM = 16, 32

local function record_of(facts, info)
  local bits = facts[info]
  if not bits then
    bits = record_bits(info)
    facts[info] = bits
  end
  return bits
end

-- Those of `wanted` that are set in the record; without one none is.
local function flags_of(facts, info, wanted)
  local bits = record_of(facts, info)
  return bits == NO_RECORD and 0 or bit.band(bits, wanted)
end

local function is_member(r, uid)
  return redis.call('SISMEMBER', r.perm, uid) == 1 or redis.call('SISMEMBER', r.temp, uid) == 1
end

-- The digit at `bits`: 0: may send, else which of the refusals it is.
local function decision(decisions, bits) return string.byte(decisions, bits + 1) - 48 end

-- r: keys info, perm, temp of the group.
local function group_refusal(facts, r, uid)
  local bits = flags_of(facts, r.info, BAN + DISBAND + SEND_BAN)
  if uid == SYSTEM_UID then return decision(GROUP_REFUSALS, bits + GROUP_SYSTEM) end
  local is_subscriber = record_of(facts, r.info) ~= NO_RECORD and is_member(r, uid)
  return decision(GROUP_REFUSALS, is_subscriber and bits + MEMBER or bits)
end

-- The receiver lists contacts, and `uid` is none of them.
local function is_stranger(facts, to, from, uid)
  if to.info == from.info or record_of(facts, to.info) == NO_RECORD or is_member(to, uid) then return false end
  return redis.call('EXISTS', to.perm, to.temp) > 0
end

-- to, from: keys info, perm, temp of the receiver's and the sender's record.
local function person_refusal(facts, to, from, uid)
  local bits = flags_of(facts, to.info, BAN + DISBAND + ALLOW_STRANGER)
  bits = bit.bor(bits, flags_of(facts, from.info, DISBAND + SEND_BAN))
  if uid == SYSTEM_UID then return decision(PERSON_REFUSALS, bits + PERSON_SYSTEM) end
  if is_stranger(facts, to, from, uid) then bits = bits + STRANGER end
  return decision(PERSON_REFUSALS, bits)
end
