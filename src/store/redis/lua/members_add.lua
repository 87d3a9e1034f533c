-- Adds members of one kind, or replaces the kind's list at once, however long that was: a group's
-- is set aside, for members_forget.lua.
-- KEYS  as of members.lua
-- ARGV  topic and id of a group, else ''; JSON list of uids, each once; 1: it replaces the list,
--   else 0
-- Reply how many uids are set aside; nil: no such channel, or disbanded
local KEPT_MS = 86400000 -- a call that was cut off leaves a list, which the next call takes on; if none comes, other keys keep removed members
if not is_open(HEAD) then return false end
local is_group = TOPIC ~= ''
local had_any = ARGV[4] == '1' and redis.call('EXISTS', KIND) == 1

local function clear()
  if not had_any then return end
  if not is_group then
    redis.call('UNLINK', KIND)
  elseif redis.call('EXISTS', REPLACED) == 0 then
    redis.call('RENAME', KIND, REPLACED)
  else -- of an earlier call that was cut off, or is not done
    redis.call('SUNIONSTORE', REPLACED, REPLACED, KIND)
    redis.call('UNLINK', KIND)
  end
  if is_group then redis.call('PEXPIRE', REPLACED, KEPT_MS) end
end

admit(cjson.decode(ARGV[3]), clear)
if not is_group then return 0 end
if had_any then publish_removal(false) end
return redis.call('SCARD', REPLACED)
