-- Reads several conversations of one user, without the content of their newest messages. Read-only.
--
-- KEYS   head of the first channel. All channels are in its slot, or all keys are on one server.
-- ARGV   see `conversation_state.lua`, then for each channel
--          base  key prefix of the channel
--          key   channel key
-- Reply  for each channel in order: false if the channel is a group that does not exist, that is
--        disbanded, or of which the user is not a member; else
--          1-8 see `facts_of`
--          then, if there is a newest shown message,
--          9   messageId
--          10  seq
--          11  clientMsgNo
--          12  Unix ms of its acceptance
--        The reply ends after the channel at which more than MAX_INSPECTED entries have been
--        inspected in total.
local FIRST_CHANNEL = 4
local MAX_INSPECTED = 1000
local GROUP = 50 -- first byte of the key of a group

local function conversation_of(base, key)
  HEAD, LOG, RED_DOTS, POSITIONS = base .. 'head:' .. key, base .. 'log:' .. key, base .. 'redDots:' .. key, base .. 'positions:' .. key
  if string.byte(key) == GROUP then
    JOIN_SEQS, PERMANENT, TEMPORARY = base .. 'joinSeqs:' .. key, base .. 'permanent:' .. key, base .. 'temporary:' .. key
  else
    JOIN_SEQS = nil
  end
  local state = user_position()
  if not state then return false end
  local last, look_on = newest(state, state.head)
  local reply = facts_of(state, last, look_on)
  if last then reply[9], reply[10], reply[11], reply[12] = last.id, last.seq, last.client_msg_no, last.accepted_ms end
  return reply
end

local conversations = {}
for at = FIRST_CHANNEL, #ARGV, 2 do
  local base, key = ARGV[at], ARGV[at + 1]
  conversations[#conversations + 1] = conversation_of(base, key)
  if inspected_entries > MAX_INSPECTED then break end
end
return conversations
