-- Enters a session of a user whose device has the token, removes those that it ends [decisions: Kick rule] and notifies their nodes and those who watch
-- the user; the same session again ends none for being itself. One that continues an earlier session keeps the order of its login, or is refused
-- [decisions: resume is no login]. `place` in `session-rules.ts` has the same rules.
-- KEYS: the user's sessions HASH sessionId → entry; the user's newest logins HASH flag → login; the user's devices HASH flag → device (`users.ts`)
-- ARGV: sessionId, incarnation, flag, level, deviceId, tokenTag, uid, the user's topic, ms that an entry is kept, ms that a login is kept,
--   the user's presence topic, the LOOSE frame of a presence event, the order it claims or '', the label it claims or '', `token` (the
--   device must have it, and its level counts) or `none`, the hash of its token
-- Reply: {'entered', since, order, level}, {'refused', reason} or {'unauthorized'}
local PAST, DEVICE_FORMAT = 8, 1
local mine = {
  incarnation = ARGV[2], flag = tonumber(ARGV[3]), level = tonumber(ARGV[4]), device = ARGV[5], tag = ARGV[6],
}
if ARGV[15] == 'token' then
  local device = redis.call('HGET', KEYS[3], ARGV[3])
  if not device then return { 'unauthorized' } end
  if device:byte(1) ~= DEVICE_FORMAT then return redis.error_reply('ERR a device of format ' .. device:byte(1)) end
  if ARGV[16] == '' or device:sub(3) ~= ARGV[16] then return { 'unauthorized' } end -- '': it logged out
  mine.level = device:byte(2)
end
local order, label = tonumber(ARGV[13]), ARGV[14]
local main = mine.level == 1
local newest = main and read_login(KEYS[2], ARGV[3]) or nil
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local since, last = now, 0
local others, expired = read_entries(KEYS[1], ARGV[1])
if newest then
  since = math.max(since, newest.since + 1)
  last = newest.order
end
for _, old in ipairs(others) do
  since = math.max(since, old.since + 1)
  last = math.max(last, old.order)
end

if newest and label ~= '' then
  if label == newest.label then order = newest.order end
  for _, one in ipairs(newest.past) do
    if one == label then order = 0 end
  end
end
if order and order > math.max(now, last) then order = nil end
if order and main then
  if newest and newest.order >= order then
    if newest.order > order and not same_device(mine, newest) then return { 'refused', 'kicked' } end
    if newest.ended ~= '' then return { 'refused', newest.ended } end
    order = newest.order
  end
  for _, old in ipairs(others) do
    if old.order > order and collide(mine, old) then
      if not same_device(mine, old) then return { 'refused', 'kicked' } end
      order = old.order
    end
  end
end
mine.since, mine.order = since, order or math.max(now, last + 1)

for _, old in ipairs(expired) do others[#others + 1] = old end -- a node that could not move the expiry on may serve it still
for _, old in ipairs(others) do
  if collide(mine, old) or continued(mine, old) then remove_ended(KEYS[1], ARGV[8], ARGV[7], mine, old) end
end
if main then
  local known, past = newest and newest.label or '', newest and newest.past or {}
  if label == '' and newest and newest.order == mine.order then label = known end
  if known ~= '' and known ~= label then
    past[#past + 1] = known
    if #past > PAST then table.remove(past, 1) end
  end
  mine.label, mine.ended, mine.past = label, '', past
  write_login(KEYS[2], ARGV[3], mine, ARGV[10])
end
write_entry(KEYS[1], ARGV[1], mine, ARGV[9])
redis.call('SPUBLISH', ARGV[11], ARGV[12])
return { 'entered', int(since), int(mine.order), int(mine.level) }
