-- Adds members of one kind to a channel, or replaces all members of that kind. The old members of a
-- group are only moved to `replaced`, so that this script does not take long. Later calls to
-- `members_forget.lua` remove the data that is stored for them.
--
-- KEYS   see `members.lua`, then see `events.lua`
-- ARGV   see `members.lua`, then
--        uids_json     JSON list without duplicates
--        is_replacing  1 to replace the members, else 0
--        is_temporary  1 for temporary members, else 0
--        then see `events.lua`
-- Reply  number of uids in `replaced`, 0 for a personal channel, nil if the channel does not exist
--        or is disbanded
local uids_json, is_replacing, is_temporary = ARGV[3], ARGV[4], ARGV[5]

-- Time to live of `replaced`. If a caller is interrupted before `replaced` is empty, the next call
-- that adds members finishes the caller's work. If no call follows within this time, the fields of
-- removed members remain in other keys.
local REPLACED_TTL_MS = 86400000
if not is_open(HEAD) then return false end
local is_group = TOPIC ~= ''
local had_members = is_replacing == '1' and redis.call('EXISTS', KIND) == 1

local function clear()
  if not had_members then return end
  if not is_group then
    redis.call('UNLINK', KIND)
  elseif redis.call('EXISTS', REPLACED) == 0 then
    redis.call('RENAME', KIND, REPLACED)
  else -- `replaced` still contains uids of an earlier call
    redis.call('SUNIONSTORE', REPLACED, REPLACED, KIND)
    redis.call('UNLINK', KIND)
  end
  if is_group then redis.call('PEXPIRE', REPLACED, REPLACED_TTL_MS) end
end

-- Returns the uids that stop being members of this kind, and the uids that become members of this
-- kind. Reads all members of this kind if they are replaced.
local function changes(uids)
  local joining = {}
  for _, at in ipairs(positions(uids, 0, function(piece) return redis.call('SMISMEMBER', KIND, unpack(piece)) end)) do
    joining[#joining + 1] = uids[at]
  end
  local leaving, stays = {}, {}
  if not had_members then return leaving, joining end
  for _, uid in ipairs(uids) do stays[uid] = true end
  for _, uid in ipairs(redis.call('SMEMBERS', KIND)) do
    if not stays[uid] then leaving[#leaving + 1] = uid end
  end
  return leaving, joining
end

local uids, leaving, joining = cjson.decode(uids_json), nil, nil
if is_feed_on() then leaving, joining = changes(uids) end
add_members(uids, clear)
if leaving then
  emit_members(CHANNEL_MEMBERS_REMOVED, leaving, is_temporary)
  emit_members(CHANNEL_MEMBERS_ADDED, joining, is_temporary)
end
if not is_group then return 0 end
if had_members then publish_removal(false) end
return redis.call('SCARD', REPLACED)
