-- Removes sessions of dead nodes. Writes `user.offline` if the user's last session left at
-- `last_leave` or earlier.
--
-- ARGV   uid
--        bucket      key prefix of the bucket of the user's events
--        event_ids   message id counter
--        on_demand   1 if session events are written, else 0
--        last_leave  Unix ms: a user whose last session left at this time or earlier is offline
--        then for each session of a dead node
--          id           sessionId
--          incarnation  incarnation of the dead node. The session stays if a node has confirmed it
--                       under a different incarnation.
-- Reply  1  1 if the user is offline now, 2 if the user has sessions, else 0
--        2  1 if the user is not announced as online and no node is about to announce the user,
--           else 0
local sessions = KEYS[1]
local uid, bucket, event_ids, on_demand, last_leave = unpack(ARGV, 1, 5)
local FIRST_SESSION = 6
local MAX_AHEAD_MS = 60000 -- a time further ahead was written before the clock was set back
local user = user_of(sessions, uid, bucket)
if not has_user_feed(user) then return { 0, 0 } end
local is_apart = user.bucket == OUTBOX

local function leave_index(name)
  if not is_apart then redis.call('ZREM', user.bucket .. name, user.uid) end
end

-- Removes from the bucket's lists a user who is not announced. Returns the reply.
local function unknown(verdict)
  leave_index('leaving')
  leave_index('online')
  return { verdict, redis.call('EXISTS', user.announcing) == 0 and 1 or 0 }
end

local announced = redis.call('GET', user.announced)
if not announced then return unknown(0) end
for at = FIRST_SESSION, #ARGV, 2 do
  local entry = read_entry(user, ARGV[at])
  if entry and entry.incarnation == ARGV[at + 1] then
    redis.call('HDEL', user.sessions, entry.id)
    note_left(user, entry)
  end
end
write_user_events(user, nil, event_ids, on_demand)
if redis.call('EXISTS', user.sessions) == 1 then
  leave_index('leaving')
  return { 2, 0 }
end
if #user.left > 0 then return { 0, 0 } end
local flag, left = string.match(announced, '^(%d+) ?(%d*)$')
if left == '' or tonumber(left) > NOW_MS + MAX_AHEAD_MS then
  redis.call('SET', user.announced, flag .. ' ' .. int(NOW_MS))
  note_leaving(user)
  return { 0, 0 }
end
if tonumber(left) > tonumber(last_leave) then return { 0, 0 } end
redis.call('DEL', user.announced)
emit_user(user, event_ids, 'events', USER_OFFLINE, '{"device_flag":' .. flag .. '}')
return unknown(1)
