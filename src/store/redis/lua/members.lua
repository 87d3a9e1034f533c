-- What the steps on a channel's members share. Lists come as JSON, one argument whatever their length, and are taken in pieces: `unpack` has a bound.
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

-- Whether the uids of a piece are members of either of two sets.
local function in_either(one, other, piece)
  local answers = redis.call('SMISMEMBER', one, unpack(piece))
  for at, answer in ipairs(redis.call('SMISMEMBER', other, unpack(piece))) do
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

-- Those of a list that are in neither of two sets.
local function in_neither(one, other, list)
  local found = {}
  in_pieces(list, function(piece)
    for at, answer in ipairs(in_either(one, other, piece)) do
      if answer == 0 then found[#found + 1] = piece[at] end
    end
  end)
  return found
end

-- New members of a group have what is newer than its head as new, whatever a list that was replaced left of them.
local function joined(k, uids)
  local seq = redis.call('HGET', k.head, 'seq') or '0'
  in_pieces(uids, function(piece)
    local fields = {}
    for _, uid in ipairs(piece) do
      fields[#fields + 1] = uid
      fields[#fields + 1] = seq
    end
    redis.call('HSET', k.join, unpack(fields))
    redis.call('HDEL', k.pos, unpack(piece))
    redis.call('HDEL', k.head, unpack(own_fields(piece)))
  end)
end

-- Removed members leave nothing behind.
local function left(k, uids)
  in_pieces(uids, function(piece)
    redis.call('HDEL', k.join, unpack(piece))
    redis.call('HDEL', k.pos, unpack(piece))
    redis.call('HDEL', k.head, unpack(own_fields(piece)))
  end)
end

-- Publishes to the group's nodes, in turn with its messages, that these uids, or any (false), are members no more.
local MAX_NAMED = 1000
local function publish_removal(k, uids)
  if uids and #uids > MAX_NAMED then uids = false end
  redis.call('SPUBLISH', k.topic, removal_frame(redis.call('HINCRBY', k.head, 'pub', 1), k.group, uids))
end

-- Adds a list to a kind. k.topic: '' of what is no group, and keeps nothing of its members. clear: what to call before, if anything.
local function admit(k, uids, clear)
  local new = k.topic ~= '' and in_neither(k.kind, k.other, uids) or {}
  if clear then clear() end
  in_pieces(uids, function(piece) redis.call('SADD', k.kind, unpack(piece)) end)
  joined(k, new)
end
