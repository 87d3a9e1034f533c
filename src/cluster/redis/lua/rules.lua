-- Entries of the session directory, newest logins, and the kick rule; put in front of the steps on one user's sessions. `session-rules.ts` says the
-- rules again. An entry is JSON: [1, life, since, flag, level, deviceId, tokenTag, order]. `order`: microseconds of Redis' clock when its login came,
-- growing per user; `since`: the same of its connection. Both as text, because JSON made in Lua keeps 14 digits of a number. Entries of earlier
-- builds have no order: theirs is `since`.
local function write_entry(life, since, flag, level, device, tag, order)
  return cjson.encode({ 1, life, int(since), tonumber(flag), tonumber(level), device, tag, int(order) })
end

local function read_entry(text)
  local fields = cjson.decode(text)
  local since = tonumber(fields[3])
  return {
    life = fields[2], since = since, flag = fields[4], level = fields[5], device = fields[6],
    order = tonumber(fields[8]) or since,
  }
end

-- The newest main login of a flag, which outlives its entry: a field of the HASH `login` of the user. JSON: [1, order, since, deviceId, label, ended,
-- past]. `ended`: why it cannot be continued, or ''; `past`: labels of earlier logins.
local function read_login(key, flag)
  local text = redis.call('HGET', key, flag)
  if not text then return nil end
  local fields = cjson.decode(text)
  return {
    order = tonumber(fields[2]), since = tonumber(fields[3]), device = fields[4],
    label = fields[5], ended = fields[6], past = fields[7],
  }
end

local function write_login(key, flag, login, ttl)
  local fields = { 1, int(login.order), int(login.since), login.device, login.label, login.ended, login.past }
  redis.call('HSET', key, flag, cjson.encode(fields))
  redis.call('PEXPIRE', key, ttl)
end

-- Both have the name of one device.
local function same_device(one, other)
  return one.device ~= '' and one.device == other.device
end

-- Whether one of the two ends the other: which, is a matter of their order.
local function collide(one, other)
  if one.flag ~= other.flag then return false end
  if same_device(one, other) then return true end
  return one.level == 1 and other.level == 1
end

-- Both are connections of one login.
local function continued(one, other)
  return one.order == other.order and one.flag == other.flag
end

local function reason_of(by, old)
  return (same_device(by, old) or continued(by, old)) and 'replaced' or 'kicked'
end

-- Tells the node of a session that it is ended: in the very step that ends it, so that no lost reply leaves it connected. A LOOSE frame (`wire.ts`).
local function tell_ended(topic, uid, id, by, old)
  local event = { kind = 'end_session', uid = uid, sessionId = id, reason = reason_of(by, old) }
  redis.call('SPUBLISH', topic, '\2\3' .. cmsgpack.pack({ 'end ' .. id .. ' ' .. int(by.since), event }))
end
