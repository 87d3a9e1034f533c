-- Functions shared by the scripts that read or change a channel's members. Lists are passed as
-- JSON, in one argument of any length, and processed in pieces, because `unpack` has a limit.
--
-- These names stand for the first keys of each script, except `list_change.lua`, and for the first
-- arguments of each script that writes.
--   HEAD, JOIN_SEQS, POSITIONS, REPLACED  keys of the channel, see `ports.ts`
--   KIND        the set of one kind of members, `permanent` if the script concerns both kinds
--   OTHER_KIND  the set of the other kind
--   TOPIC       of a group, else ''
--   GROUP       id of a group, else ''
local HEAD, KIND, OTHER_KIND, JOIN_SEQS, POSITIONS, REPLACED = unpack(KEYS)
local TOPIC, GROUP = ARGV[1], ARGV[2]
local PIECE = 1000

local function in_pieces(list, step)
  for first = 1, #list, PIECE do
    local piece = {}
    for at = first, math.min(first + PIECE - 1, #list) do piece[#piece + 1] = list[at] end
    step(piece, first - 1)
  end
end

-- Returns the positions (from 1) of the items for which `step` returns `value`. `step` is called
-- with a piece of the list and returns one value for each item.
local function positions(list, value, step)
  local result = {}
  in_pieces(list, function(piece, before)
    for at, answer in ipairs(step(piece)) do
      if answer == value then result[#result + 1] = before + at end
    end
  end)
  return result
end

local function are_members(piece)
  local answers = redis.call('SMISMEMBER', KIND, unpack(piece))
  for at, answer in ipairs(redis.call('SMISMEMBER', OTHER_KIND, unpack(piece))) do
    if answer == 1 then answers[at] = 1 end
  end
  return answers
end

local function own_fields(uids)
  local fields = {}
  for at, uid in ipairs(uids) do fields[at] = '@' .. uid end
  return fields
end

local function non_members(list)
  local uids = {}
  in_pieces(list, function(piece)
    for at, answer in ipairs(are_members(piece)) do
      if answer == 0 then uids[#uids + 1] = piece[at] end
    end
  end)
  return uids
end

local function forget_members(uids)
  in_pieces(uids, function(piece)
    redis.call('HDEL', JOIN_SEQS, unpack(piece))
    redis.call('HDEL', POSITIONS, unpack(piece))
    redis.call('HDEL', HEAD, unpack(own_fields(piece)))
  end)
end

-- Initializes new members of a group. Only messages after the current head are unread for them,
-- even if they were members before.
local function initialize_members(uids)
  forget_members(uids)
  local seq = redis.call('HGET', HEAD, 'seq') or '0'
  in_pieces(uids, function(piece)
    local fields = {}
    for at, uid in ipairs(piece) do fields[2 * at - 1], fields[2 * at] = uid, seq end
    redis.call('HSET', JOIN_SEQS, unpack(fields))
  end)
end

-- Maximum number of uids in a published removal. A removal without uids means that any member may
-- have been removed.
local MAX_NAMED = 1000
local function publish_removal(uids)
  if uids and #uids > MAX_NAMED then uids = false end
  redis.call('SPUBLISH', TOPIC, removal_frame(redis.call('HINCRBY', HEAD, 'pub', 1), GROUP, uids))
end

-- Adds members to the set `KIND`. `clear`, if present, empties the set first. In a group,
-- initializes the users who were not members of either kind.
local function add_members(uids, clear)
  local new_uids = TOPIC ~= '' and non_members(uids) or {}
  if clear then clear() end
  in_pieces(uids, function(piece) redis.call('SADD', KIND, unpack(piece)) end)
  initialize_members(new_uids)
end
