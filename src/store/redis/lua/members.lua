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

-- Those who are members of a group from now on have what is newer than its head as new, whatever a list that is still looked through left of them.
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
    redis.call('HDEL', k.own, unpack(piece))
  end)
end

-- Those who are no members any more leave nothing behind.
local function left(k, uids)
  in_pieces(uids, function(piece)
    redis.call('HDEL', k.join, unpack(piece))
    redis.call('HDEL', k.pos, unpack(piece))
    redis.call('HDEL', k.own, unpack(piece))
  end)
end

-- Tells the group's nodes in turn with its messages that these, or any (false), are members no more. k: head, topic ('': it is no group), group.
local MAX_NAMED = 1000
local function tell_removal(k, uids)
  if k.topic == '' then return end
  if uids and #uids > MAX_NAMED then uids = false end
  redis.call('SPUBLISH', k.topic, removal_frame(redis.call('HINCRBY', k.head, 'pub', 1), k.group, uids))
end

-- Adds a list to a kind; positions of those that were no members of either. k.before: where the kind's list is set aside, else the kind.
local function admit(k, uids, is_group)
  local found = positions(uids, 0, function(piece) return in_either(k.before, k.other, piece) end)
  in_pieces(uids, function(piece) redis.call('SADD', k.kind, unpack(piece)) end)
  if is_group then
    local new = {}
    for _, at in ipairs(found) do new[#new + 1] = uids[at] end
    joined(k, new)
  end
  return found
end
