-- What the steps on a channel's members share. Lists come as JSON, one argument whatever their
-- length, and are taken in pieces: `unpack` has a bound.
-- KEYS of every such step: 1 head, 2 the set of one kind (`permanent` where the step has none of
--   its own), 3 that of the other kind, 4 joinSeqs,
-- 5 positions, 6 replaced; ARGV of those that write: 1 and 2 topic and id of a group, else ''.
local HEAD, KIND, OTHER, JOIN_SEQS, POSITIONS, REPLACED = unpack(KEYS)
local TOPIC, GROUP = ARGV[1], ARGV[2]
local PIECE = 1000

-- Calls step(piece, uids before it) for the pieces of a list.
local function in_pieces(list, step)
  for first = 1, #list, PIECE do
    local piece = {}
    for at = first, math.min(first + PIECE - 1, #list) do piece[#piece + 1] = list[at] end
    step(piece, first - 1)
  end
end

-- Positions of those of a list that `step` (piece → 0 or 1 for each) answers with `wanted`.
local function positions(list, wanted, step)
  local found = {}
  in_pieces(list, function(piece, before)
    for at, answer in ipairs(step(piece)) do
      if answer == wanted then found[#found + 1] = before + at end
    end
  end)
  return found
end

-- Whether the uids of a piece are members of either kind.
local function in_either(piece)
  local answers = redis.call('SMISMEMBER', KIND, unpack(piece))
  for at, answer in ipairs(redis.call('SMISMEMBER', OTHER, unpack(piece))) do
    if answer == 1 then answers[at] = 1 end
  end
  return answers
end

-- The fields of the head that have the seqs of the newest messages of the uids.
local function own_fields(uids)
  local fields = {}
  for at, uid in ipairs(uids) do fields[at] = '@' .. uid end
  return fields
end

-- Those of a list that are members of neither kind.
local function in_neither(list)
  local found = {}
  in_pieces(list, function(piece)
    for at, answer in ipairs(in_either(piece)) do
      if answer == 0 then found[#found + 1] = piece[at] end
    end
  end)
  return found
end

-- Members leave nothing behind.
local function left(uids)
  in_pieces(uids, function(piece)
    redis.call('HDEL', JOIN_SEQS, unpack(piece))
    redis.call('HDEL', POSITIONS, unpack(piece))
    redis.call('HDEL', HEAD, unpack(own_fields(piece)))
  end)
end

-- New members of a group have what is newer than its head as new, whatever a list that was replaced
-- left of them.
local function joined(uids)
  left(uids)
  local seq = redis.call('HGET', HEAD, 'seq') or '0'
  in_pieces(uids, function(piece)
    local fields = {}
    for at, uid in ipairs(piece) do fields[2 * at - 1], fields[2 * at] = uid, seq end
    redis.call('HSET', JOIN_SEQS, unpack(fields))
  end)
end

-- Publishes to the group's nodes, in turn with its messages, that these uids, or any (false), are
-- members no more.
local MAX_NAMED = 1000
local function publish_removal(uids)
  if uids and #uids > MAX_NAMED then uids = false end
  redis.call('SPUBLISH', TOPIC, removal_frame(redis.call('HINCRBY', HEAD, 'pub', 1), GROUP, uids))
end

-- Adds a list to the kind; what is no group keeps nothing of its members. clear: what to call
-- before, if anything.
local function admit(uids, clear)
  local new = TOPIC ~= '' and in_neither(uids) or {}
  if clear then clear() end
  in_pieces(uids, function(piece) redis.call('SADD', KIND, unpack(piece)) end)
  joined(new)
end
