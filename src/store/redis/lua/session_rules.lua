-- A user's sessions, newest logins and the kick rule; put in front of the scripts on them.
-- `embedded/steps/session-rules.ts` has the rules again, and `test/contract/kick-cases.ts` the
-- cases. All keys of a user are of one slot:
--   sessions HASH sessionId → entry, JSON: [1, incarnation, since, flag, level, deviceId, tokenTag,
--     order, expires]. `order`: microseconds of Redis' clock
--     when its login came, growing per user; `since`: the same of its connection; `expires`: Unix
--       milliseconds, moved on while its node serves it
--   logins   HASH flag → the newest main login, which outlives its entry, JSON: [1, order, since,
--     deviceId, label, ended, past]. `ended`: why it cannot
--     be continued, or ''; `past`: labels of earlier logins
--   ended    HASH sessionId → `<microseconds> <reason>` of sessions that were ended and of which no
--     newest login says so, until their nodes take them
--     out: the newest 100; `flag <flag>` → the same of all sessions of a device until then, never
--       evicted
--   devices  HASH flag → device (`users.ts`)
-- These numbers are text, because JSON made in Lua keeps 14 digits of a number.
local PAST, MAX_ENDED, DEVICE_FORMAT = 8, 100, 1
local time = redis.call('TIME')
local NOW = tonumber(time[1]) * 1000000 + tonumber(time[2])
local NOW_MS = math.floor(NOW / 1000)

-- The keys and topics of the user whose sessions are under `key`.
local function user_of(key, uid)
  local base = string.sub(key, 1, -1 - #'sessions')
  return {
    uid = uid, sessions = key, logins = base .. 'logins', ended = base .. 'ended', devices = base .. 'devices',
    groups = base .. 'groups', topic = base .. 'topic', presence = base .. 'presence',
  }
end

-- A LOOSE frame (`wire.ts`); `name` is unique among what is published at one time.
local function publish(topic, name, event)
  redis.call('SPUBLISH', topic, '\2\3' .. cmsgpack.pack({ name .. ' ' .. int(NOW), event }))
end

-- To those who watch the user.
local function publish_presence(user)
  publish(user.presence, 'presence ' .. user.uid, { kind = 'presence', uid = user.uid })
end

-- To the node that serves the session.
local function publish_end(user, id, reason)
  publish(user.topic, 'end ' .. id, { kind = 'end_session', uid = user.uid, sessionId = id, reason = reason })
end

local function write_entry(user, one)
  redis.call('HSET', user.sessions, one.id, cjson.encode({
    1, one.incarnation, int(one.since), one.flag, one.level, one.device, one.tag, int(one.order), int(NOW_MS + ENTRY_TTL),
  }))
  redis.call('PEXPIRE', user.sessions, ENTRY_TTL)
end

local function parse_entry(id, text)
  local fields = cjson.decode(text)
  return {
    id = id, incarnation = fields[2], since = tonumber(fields[3]), flag = fields[4], level = fields[5], device = fields[6],
    order = tonumber(fields[8]), expires = tonumber(fields[9]) or 0, -- 0: written by an earlier build
  }
end

local function read_entry(user, id)
  local text = redis.call('HGET', user.sessions, id)
  return text and parse_entry(id, text) or nil
end

-- All entries but `except`; and those that expired, which it drops: most likely no node serves them
-- any more.
local function read_entries(user, except)
  local entries, expired = {}, {}
  local all = redis.call('HGETALL', user.sessions)
  for at = 1, #all, 2 do
    if all[at] ~= except then
      local one = parse_entry(all[at], all[at + 1])
      if one.expires < NOW_MS then
        redis.call('HDEL', user.sessions, one.id)
        expired[#expired + 1] = one
      else
        entries[#entries + 1] = one
      end
    end
  end
  return entries, expired
end

local function read_login(user, flag)
  local text = redis.call('HGET', user.logins, flag)
  if not text then return nil end
  local fields = cjson.decode(text)
  return {
    order = tonumber(fields[2]), since = tonumber(fields[3]), device = fields[4],
    label = fields[5], ended = fields[6], past = fields[7],
  }
end

local function write_login(user, flag, login)
  local fields = { 1, int(login.order), int(login.since), login.device, login.label, login.ended, login.past }
  redis.call('HSET', user.logins, flag, cjson.encode(fields))
  redis.call('PEXPIRE', user.logins, LOGIN_TTL)
end

-- Makes `mine` the newest main login, by its own label or '', behind the one before: what that was
-- called is a past label, if it is another login.
local function follow_login(user, mine, label, newest)
  local known, past = newest and newest.label or '', newest and newest.past or {}
  if label == '' and newest and newest.order == mine.order then label = known end
  if known ~= '' and known ~= label then
    past[#past + 1] = known
    if #past > PAST then table.remove(past, 1) end
  end
  mine.label, mine.ended, mine.past = label, '', past
  write_login(user, int(mine.flag), mine)
end

-- Remembers that a session was ended whose node may not have heard of it, and would enter it again.
-- Of a main one that another main, or nobody, ended the newest login says so.
local function remember_end(user, id, since, reason)
  redis.call('HSET', user.ended, id, int(math.max(NOW, since)) .. ' ' .. reason)
  redis.call('PEXPIRE', user.ended, ENDED_TTL)
  if redis.call('HLEN', user.ended) <= MAX_ENDED then return end
  local all, oldest, first = redis.call('HGETALL', user.ended), math.huge, nil
  for at = 1, #all, 2 do
    local ended = tonumber(string.match(all[at + 1], '^%d+'))
    local is_session = string.sub(all[at], 1, #'flag ') ~= 'flag '
    if is_session and ended < oldest then oldest, first = ended, all[at] end
  end
  redis.call('HDEL', user.ended, first)
end

-- Remembers that all sessions of a device were ended, also those that are not in.
local function end_device(user, flag, reason)
  local newest = read_login(user, flag)
  if newest then
    newest.ended = reason
    write_login(user, flag, newest)
  end
  remember_end(user, 'flag ' .. flag, 0, reason)
end

-- Why a session was ended, or all of its device; nil: it was not, as far as is remembered. One of
-- an earlier process may have had its id.
local function read_end(user, mine)
  for _, one in ipairs(redis.call('HMGET', user.ended, mine.id, 'flag ' .. int(mine.flag))) do
    local ended, reason = string.match(one or '', '^(%d+) (.*)$')
    if ended and tonumber(ended) >= mine.since then return reason end
  end
end

-- The level of the user's device and the hash of its token, '' when it logged out; or nothing when
-- there is no device.
local function read_device(user, flag)
  local device = redis.call('HGET', user.devices, flag)
  if not device then return nil end
  if device:byte(1) ~= DEVICE_FORMAT then error('Redis holds a device of format ' .. device:byte(1), 0) end
  return { level = device:byte(2), hash = device:sub(3) }
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

-- Takes a session out that `by` ends, and notifies its node in the same step: a session removed
-- without that event would be served for ever.
local function replace(user, by, old)
  local reason = reason_of(by, old)
  redis.call('HDEL', user.sessions, old.id)
  if old.level ~= 1 or by.level ~= 1 then remember_end(user, old.id, old.since, reason) end
  publish_end(user, old.id, reason)
end

-- Takes a session out that was there, and which can be neither continued nor entered again.
local function take_out(user, old, reason)
  if old.level ~= 1 then remember_end(user, old.id, old.since, reason) end
  local newest = old.level == 1 and read_login(user, int(old.flag)) or nil
  if newest and newest.order == old.order then
    newest.ended = reason
    write_login(user, int(old.flag), newest)
  end
  redis.call('HDEL', user.sessions, old.id)
  publish_presence(user)
end
