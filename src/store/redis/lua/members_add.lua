-- Adds members of one kind, or replaces all members of that kind in constant time, however many
-- there are. The old members of a group are set aside for `members_forget.lua`.
--
-- KEYS  see `members.lua`
-- ARGV
--   1  topic  of a group, else ''
--   2  id     of a group, else ''
--   3  uids   JSON list without duplicates
--   4  1 to replace the members, else 0
-- Reply
--   number of uids that are set aside, nil if the channel does not exist or is disbanded
-- An interrupted call leaves its list in `replaced` for the next call. If no call follows within
-- this time, the fields of removed members remain in other keys.
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
  else -- an earlier call was interrupted or is still in progress
    redis.call('SUNIONSTORE', REPLACED, REPLACED, KIND)
    redis.call('UNLINK', KIND)
  end
  if is_group then redis.call('PEXPIRE', REPLACED, REPLACED_TTL_MS) end
end

add_members(cjson.decode(ARGV[3]), clear)
if not is_group then return 0 end
if had_members then publish_removal(false) end
return redis.call('SCARD', REPLACED)
