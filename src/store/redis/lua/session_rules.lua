-- A user's sessions and newest logins, and the kick rule. Placed in front of session scripts.
-- `embedded/steps/session-rules.ts` implements the same rules, and `test/contract/kick-cases.ts`
-- tests them. All keys of a user are in one slot:
--
--   sessions  HASH  sessionId: JSON list
--                     format       1
--                     incarnation
--                     since        microseconds of Redis' clock when its connection logged in;
--                                  higher than for earlier connections of the user
--                     flag
--                     level
--                     deviceId
--                     tokenTag
--                     order        microseconds of Redis' clock at its login; higher than for
--                                  earlier logins of the user. A session that continues an
--                                  earlier session keeps the order of that session's login.
--                     expires      Unix ms, extended while a node serves the session
--                     background   1 while its client is in the background, else absent
--   logins    HASH  flag: JSON list of the newest main login, which outlives its session's entry
--                     format       1
--                     order
--                     since
--                     deviceId
--                     label
--                     ended        reason why the login cannot be continued, '' if it can
--                     past         labels of earlier logins
--   ended     HASH  sessionId: `<microseconds> <reason>` of the session's end. Absent if `logins`
--                   shows the end of the session. The session's node removes the field.
--                   `flag <flag>`: `<microseconds> <reason>` of the end of all of a device's
--                   sessions.
--                   `kick <sessionId>`: `<microseconds> `, present if the feed contains the event
--                   of the session's kick. The session's node removes the field.
--                   If there are more than 100 fields, the oldest field other than `flag <flag>` is
--                   removed.
--   announced                          see `user_events.lua`
--   announcing, outbox, outboxSeq      see `user_feed.lua`
--   devices   HASH  flag: device (`users.ts`)
--                   `ban`: present while the account is banned
--
-- The numbers since, order and expires are strings, because JSON encoded in Lua keeps only 14
-- digits of a number.
local PAST, MAX_ENDED, DEVICE_FORMAT = 8, 100, 2
local time = redis.call('TIME')
local NOW = tonumber(time[1]) * 1000000 + tonumber(time[2])
local NOW_MS = math.floor(NOW / 1000)

-- Returns the keys and the state of a user. `bucket` (see `user_feed.lua`) is nil if the script
-- writes no user events.
local function user_of(key, uid, bucket)
  local base = string.sub(key, 1, -1 - #'sessions')
  return {
    uid = uid, sessions = key, logins = base .. 'logins', ended = base .. 'ended', devices = base .. 'devices',
    groups = base .. 'groups', topic = base .. 'topic@DATABASE', presence = base .. 'presence@DATABASE',
    announced = base .. 'announced', announcing = base .. 'announcing', outbox = base .. 'outbox', bucket = bucket,
    left = {}, -- entries that the script has removed, with the `reason` of each, for events
  }
end

local function note_left(user, entry, reason)
  entry.reason = reason
  user.left[#user.left + 1] = entry
end

-- Publishes an event. The id of the publication consists of `name` and the time, so `name` must be
-- unique within one microsecond.
local function publish(topic, name, event)
  redis.call('SPUBLISH', topic, '\2\3' .. cmsgpack.pack({ name .. ' ' .. int(NOW), event }))
end

-- Publishes that the user's sessions changed. `cause` is the reason for the end of a session, nil
-- if no session ended or if only the session's connection ended. The cause is published only if no
-- entry is left. Otherwise, a watching node that reads the state only after the last session has
-- ended could mistake the cause of an earlier end for the cause of the last one.
local function publish_presence(user, cause)
  if cause and redis.call('HLEN', user.sessions) > 0 then cause = nil end
  publish(user.presence, 'presence ' .. user.uid, { kind = 'presence', uid = user.uid, cause = cause })
end

local function publish_end(user, id, reason)
  publish(user.topic, 'end ' .. id, { kind = 'end_session', uid = user.uid, sessionId = id, reason = reason })
end

local function write_entry(user, entry)
  redis.call('HSET', user.sessions, entry.id, cjson.encode({
    1, entry.incarnation, int(entry.since), entry.flag, entry.level, entry.device, entry.tag, int(entry.order), int(NOW_MS + ENTRY_TTL),
    entry.background,
  }))
  redis.call('PEXPIRE', user.sessions, ENTRY_TTL)
end

local function parse_entry(id, text)
  local fields = cjson.decode(text)
  return {
    id = id, incarnation = fields[2], since = tonumber(fields[3]), flag = fields[4], level = fields[5], device = fields[6],
    -- Entries of an earlier build have no `expires`.
    order = tonumber(fields[8]), expires = tonumber(fields[9]) or 0,
  }
end

local function read_entry(user, id)
  local text = redis.call('HGET', user.sessions, id)
  return text and parse_entry(id, text) or nil
end

-- Returns two lists: entries that have not expired, and expired entries. Both lists omit the
-- session `except`. Removes the expired entries from Redis, because most likely no node serves
-- their sessions, and notes their end for events.
local function read_entries(user, except)
  local entries, expired = {}, {}
  local all = redis.call('HGETALL', user.sessions)
  for at = 1, #all, 2 do
    if all[at] ~= except then
      local entry = parse_entry(all[at], all[at + 1])
      if entry.expires < NOW_MS then
        redis.call('HDEL', user.sessions, entry.id)
        note_left(user, entry)
        expired[#expired + 1] = entry
      else
        entries[#entries + 1] = entry
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

-- Makes `session` the newest main login of its flag. `label` may be ''. `newest` is the newest
-- login so far. If `newest` is the login of `session`, an empty `label` keeps the label of
-- `newest`. If the label of `newest` is replaced, it becomes a past label.
local function set_newest_login(user, session, label, newest)
  local last_label, past = newest and newest.label or '', newest and newest.past or {}
  if label == '' and newest and newest.order == session.order then label = last_label end
  if last_label ~= '' and last_label ~= label then
    past[#past + 1] = last_label
    if #past > PAST then table.remove(past, 1) end
  end
  session.label, session.ended, session.past = label, '', past
  write_login(user, int(session.flag), session)
end

-- Records the end of a session, because its node may miss the event and would then add the session
-- again. No record is needed for a main session if the record of the newest login shows that the
-- session has ended.
local function record_end(user, id, since, reason)
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

local function forget_end(user, id) redis.call('HDEL', user.ended, id, 'kick ' .. id) end

local function end_device(user, flag, reason)
  local newest = read_login(user, flag)
  if newest then
    newest.ended = reason
    write_login(user, flag, newest)
  end
  record_end(user, 'flag ' .. flag, 0, reason)
end

-- Returns the recorded reason for the end of a session, nil if no end is recorded. Ignores a record
-- that is older than the session, because a different process may have used the same session id.
local function read_end(user, session)
  for _, end_record in ipairs(redis.call('HMGET', user.ended, session.id, 'flag ' .. int(session.flag))) do
    local ended, reason = string.match(end_record or '', '^(%d+) (.*)$')
    if ended and tonumber(ended) >= session.since then return reason end
  end
end

-- Reads a device. Its hash is '' if the device is logged out. `revoked` is the Unix second of its
-- last logout, 0 if there was none.
local function read_device(user, flag)
  local device = redis.call('HGET', user.devices, flag)
  if not device then return nil end
  if device:byte(1) ~= DEVICE_FORMAT then error('the format ' .. device:byte(1) .. ' of a device is unknown', 0) end
  return { level = device:byte(2), revoked = struct.unpack('>I6', device:sub(3, 8)), hash = device:sub(9) }
end

-- Number of bytes in a stored device before the hash of its token.
local DEVICE_HEAD_BYTES = 8

local function write_device(user, flag, device)
  local head = string.char(DEVICE_FORMAT, device.level) .. struct.pack('>I6', device.revoked)
  redis.call('HSET', user.devices, flag, head .. device.hash)
end

-- Makes the devices expire after `kept_ms` if the user is not banned and every device is logged
-- out. Otherwise, the devices do not expire.
local function expire_devices(user, kept_ms)
  local devices = redis.call('HGETALL', user.devices)
  for at = 1, #devices, 2 do
    if devices[at] == 'ban' or #devices[at + 1] > DEVICE_HEAD_BYTES then return redis.call('PERSIST', user.devices) end
  end
  redis.call('PEXPIRE', user.devices, kept_ms)
end

local function is_banned(user) return redis.call('HEXISTS', user.devices, 'ban') == 1 end

local function same_device(first, second)
  return first.device ~= '' and first.device == second.device
end

-- Returns true if only one of the two sessions may stay. Their login order decides which one.
local function collide(first, second)
  if first.flag ~= second.flag then return false end
  if same_device(first, second) then return true end
  return first.level == 1 and second.level == 1
end

local function same_login(first, second)
  return first.order == second.order and first.flag == second.flag
end

local function reason_of(by, old)
  return (same_device(by, old) or same_login(by, old)) and 'replaced' or 'kicked'
end

-- Removes the session `old` because the session `by` ends it. Notifies the node of `old` in the
-- same atomic step. Otherwise, that node would serve `old` forever.
local function replace(user, by, old)
  local reason = reason_of(by, old)
  if redis.call('HDEL', user.sessions, old.id) == 1 then note_left(user, old, reason) end
  if old.level ~= 1 or by.level ~= 1 then record_end(user, old.id, old.since, reason) end
  publish_end(user, old.id, reason)
end

-- Removes a session that has an entry, so that it can be neither continued nor added again, and
-- notifies the user's watchers.
local function remove_entry(user, old, reason)
  if old.level ~= 1 then record_end(user, old.id, old.since, reason) end
  local newest = old.level == 1 and read_login(user, int(old.flag)) or nil
  if newest and newest.order == old.order then
    newest.ended = reason
    write_login(user, int(old.flag), newest)
  end
  redis.call('HDEL', user.sessions, old.id)
  note_left(user, old, reason)
  publish_presence(user, reason)
end
