-- Adds members of one kind to a channel, or replaces all members of that kind. The old members of a
-- group are only moved to `replaced`, so that this script does not take long. Later calls of
-- `members_forget.lua` remove what is stored for them.
--
-- KEYS   see `members.lua`
-- ARGV   1  topic  of a group, else ''
--        2  id     of a group, else ''
--        3  uids   JSON list without duplicates
--        4  1 to replace the members, else 0
-- Reply  number of uids in `replaced`, 0 for a personal channel, nil if the channel does not exist
--        or is disbanded

-- Time to live of `replaced`. If a caller is interrupted before `replaced` is empty, the next call
-- that adds members finishes the caller's work. If no call follows within this time, the fields of
-- removed members remain in other keys.
local REPLACED_TTL_MS = 86400000
if not is_open(HEAD) then return false end
local is_group = TOPIC ~= ''
local had_members = ARGV[4] == '1' and redis.call('EXISTS', KIND) == 1

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

add_members(cjson.decode(ARGV[3]), clear)
if not is_group then return 0 end
if had_members then publish_removal(false) end
return redis.call('SCARD', REPLACED)
