-- Adds members of one kind, or replaces the kind's list at once, however long that was: a group's is set aside, for members_forget.lua.
-- KEYS  head, the kind's set, the other kind's, join, pos, replaced
-- ARGV  topic and id of a group, else ''; JSON list of uids, each once; 1: it replaces the list, else 0
-- Reply how many uids are set aside; nil: no such channel, or disbanded
local KEPT_MS = 86400000 -- a call that was cut off leaves a list, which the next call takes on; if none comes, join, pos and head keep removed members
if not is_open(KEYS[1]) then return false end
local k = { head = KEYS[1], kind = KEYS[2], other = KEYS[3], join = KEYS[4], pos = KEYS[5], topic = ARGV[1], group = ARGV[2] }
local replaced, is_group, resets = KEYS[6], ARGV[1] ~= '', ARGV[4] == '1'
local had_any = resets and redis.call('EXISTS', k.kind) == 1

local function clear()
  if not had_any then return end
  if not is_group then
    redis.call('UNLINK', k.kind)
  elseif redis.call('EXISTS', replaced) == 0 then
    redis.call('RENAME', k.kind, replaced)
  else -- of an earlier call that was cut off, or is not done
    redis.call('SUNIONSTORE', replaced, replaced, k.kind)
    redis.call('UNLINK', k.kind)
  end
  if is_group then redis.call('PEXPIRE', replaced, KEPT_MS) end
end

admit(k, cjson.decode(ARGV[3]), clear)
if not is_group then return 0 end
if had_any then publish_removal(k, false) end
return redis.call('SCARD', replaced)
