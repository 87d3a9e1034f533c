-- Who may send where, behind the tables made of `broker/permissions.ts` (`permission-tables.ts`)
-- and `channel_record.lua`: the facts are reduced to a few bits, which say where in the table the
-- decision stands, a digit: 0: may send, else which of the refusals it is. Reads only.
-- GROUP_REFUSALS: ban 1, disband 2, sendBan 4 as in a record, 8 the sender is a member.
-- PERSON_REFUSALS: of the receiver's record ban 1, disband 2 (or of the sender's), allowStranger 8,
-- of the sender's sendBan 4, 16 the sender is a stranger. Both: 32 the sender is exempt, 64 the
-- sender is on the denylist, 128 the allowlist counts and lacks the sender.
local OF_GROUP = 7 -- ban, disband, sendBan
local OF_RECEIVER = 11 -- ban, disband, allowStranger
local OF_SENDER = 6 -- disband, sendBan
local MEMBER = 8
local STRANGER = 16
local SYSTEM = 32
local DENIED = 64
local UNLISTED = 128

-- base: what the keys of the channel whose members these are begin with.
local function is_member(base, key, uid)
  if redis.call('SISMEMBER', base .. 'permanent:' .. key, uid) == 1 then return true end
  return redis.call('SISMEMBER', base .. 'temporary:' .. key, uid) == 1
end

-- check: 1 as it is, 2 the receiver's allowlist counts, 3 a system account sends, 4 one receives.
local FRIENDS = 2
local EXEMPT = 3
local OPEN = 4

-- info, lists: of the group's head, as its other facts.
local function group_refusal(info, lists, base, key, uid, check)
  local record = bits_of(info)
  local bits = record == NO_RECORD and 0 or bit.band(record, OF_GROUP)
  if uid == SYSTEM_UID or check == EXEMPT then
    bits = bits + SYSTEM
  elseif record ~= NO_RECORD then
    if is_member(base, key, uid) then bits = bits + MEMBER end
    if lists then
      if redis.call('SISMEMBER', base .. 'denylist:' .. key, uid) == 1 then bits = bits + DENIED end
      if bit.band(tonumber(lists), HAS_ALLOWLIST) ~= 0 and redis.call('SISMEMBER', base .. 'allowlist:' .. key, uid) == 0 then bits = bits + UNLISTED end
    end
  end
  return string.byte(GROUP_REFUSALS, bits + 1) - 48
end

-- Of the users of a personal channel: what the keys of their records begin with, and their keys.
local function person_refusal(to_base, to, from_base, from, uid, check)
  local of_receiver = redis.call('HMGET', to_base .. 'head:' .. to, 'info', 'lists')
  local receiver, lists = bits_of(of_receiver[1]), of_receiver[2]
  local sender = to == from and receiver or record_bits(from_base .. 'head:' .. from)
  local bits = receiver == NO_RECORD and 0 or bit.band(receiver, OF_RECEIVER)
  if sender ~= NO_RECORD then bits = bit.bor(bits, bit.band(sender, OF_SENDER)) end
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
