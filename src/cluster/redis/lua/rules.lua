-- Entries of the session directory and the kick rule; put in front of the steps on one user's sessions. `session-rules.ts` says the rule again.
-- An entry is JSON: [1, life, since, flag, level, deviceId, tokenTag]. `since`: microseconds of Redis' clock when it logged in, growing per
-- user; as text, because JSON made in Lua keeps 14 digits of a number.
local function write_entry(life, since, flag, level, device, tag)
  return cjson.encode({ 1, life, int(since), tonumber(flag), tonumber(level), device, tag })
end

local function read_entry(text)
  local fields = cjson.decode(text)
  return { life = fields[2], since = tonumber(fields[3]), flag = fields[4], level = fields[5], device = fields[6] }
end

-- Whether one of the two ends the other: which, is a matter of who came later.
local function collide(one, other)
  if one.flag ~= other.flag then return false end
  if one.device ~= '' and one.device == other.device then return true end
  return one.level == 1 and other.level == 1
end

-- Tells the node of a session that it is ended: in the very step that ends it, so that no lost reply leaves it connected. A LOOSE frame (`wire.ts`).
local function tell_ended(topic, uid, id, old, by)
  local same = by.device ~= '' and by.device == old.device
  local event = { kind = 'end_session', uid = uid, sessionId = id, reason = same and 'replaced' or 'kicked' }
  redis.call('SPUBLISH', topic, '\1\3' .. cmsgpack.pack({ 'end ' .. id .. ' ' .. int(by.since), event }))
end
