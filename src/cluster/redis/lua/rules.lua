-- Entries of the session directory, newest logins, and the kick rule; put in front of the scripts on one user's sessions. `session-rules.ts` has the
-- rules again. An entry is JSON: [1, incarnation, since, flag, level, deviceId, tokenTag, order, expires]. `order`: microseconds of Redis' clock when
-- its login came, growing per user; `since`: the same of its connection; `expires`: Unix milliseconds, moved on while its node serves the session.
-- These are text, because JSON made in Lua keeps 14 digits of a number.
local function write_entry(key, id, one, ttl)
  local time = redis.call('TIME')
  local expires = tonumber(time[1]) * 1000 + tonumber(ttl)
  redis.call('HSET', key, id, cjson.encode({
    1, one.incarnation, int(one.since), one.flag, one.level, one.device, one.tag, int(one.order), int(expires),
  }))
  redis.call('PEXPIRE', key, ttl)
end

local function read_entry(text)
  local fields = cjson.decode(text)
  return {
    incarnation = fields[2], since = tonumber(fields[3]), flag = fields[4], level = fields[5], device = fields[6],
    order = tonumber(fields[8]), expires = tonumber(fields[9]) or 0, -- 0: written by an earlier build
  }
end

-- All entries but `except`, with their ids; and those that expired, which it drops: most likely no node serves them any more.
local function read_entries(key, except)
  local now, entries, expired = tonumber(redis.call('TIME')[1]) * 1000, {}, {}
  local all = redis.call('HGETALL', key)
  for at = 1, #all, 2 do
    if all[at] ~= except then
      local one = read_entry(all[at + 1])
      one.id = all[at]
      if one.expires < now then
        redis.call('HDEL', key, one.id)
        expired[#expired + 1] = one
      else
        entries[#entries + 1] = one
      end
    end
  end
  return entries, expired
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

-- Takes a session out and notifies its node, atomically: a session removed without that event would be served for ever. A LOOSE frame (`wire.ts`).
local function remove_ended(key, topic, uid, by, old)
  redis.call('HDEL', key, old.id)
  local event = { kind = 'end_session', uid = uid, sessionId = old.id, reason = reason_of(by, old) }
  redis.call('SPUBLISH', topic, '\2\3' .. cmsgpack.pack({ 'end ' .. old.id .. ' ' .. int(by.since), event }))
end
