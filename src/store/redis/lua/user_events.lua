-- Writes user and session events, and keeps the lists of users who were announced as online. Placed
-- in front of scripts, after `user_feed.lua` and `session_rules.lua`.
--
-- Keys of the user:
--   announced  STRING  device flag; if the user has no session, also a space and the Unix ms when
--                      the last session left. Present if `user.online` is in the feed and
--                      `user.offline` has not followed it yet.
-- Keys of the bucket of the user's events:
--   online     ZSET    uid of each user with `announced`, scored by the Unix ms of the last
--                      check of the user's sessions. On a Redis Cluster also users whose
--                      outbox may have entries
--   leaving    ZSET    uid, scored by the Unix ms when the user's last session left. May contain
--                      users who have returned.
local LEFT = -1

local function emit_online(user, ids, flag)
  if user.bucket ~= OUTBOX then redis.call('ZADD', user.bucket .. 'online', int(NOW_MS), user.uid) end
  emit_user(user, ids, 'events', USER_ONLINE, '{"device_flag":' .. flag .. '}')
end

local function is_kick(reason) return reason and string.find(KICK_REASONS, ' ' .. reason .. ' ', 1, true) end

-- Emits `session.kicked`. Records that the feed has this event, because the node of the session may
-- try to confirm the session again, which must not emit a second event.
local function emit_kick(user, ids, session)
  emit_user(user, ids, 'events', SESSION_KICKED, '{"device_flag":' .. int(session.flag) .. ',"device_id":' .. cjson.encode(session.device)
    .. ',"reason":"' .. session.reason .. '"}')
  record_end(user, 'kick ' .. session.id, 0, '')
end

local function has_kick_event(user, session)
  return redis.call('HEXISTS', user.ended, 'kick ' .. session.id) == 1
end

local function note_leaving(user)
  if user.bucket == OUTBOX then return put_outbox(user, '', LEFT, int(NOW_MS)) end
  redis.call('ZADD', user.bucket .. 'leaving', int(NOW_MS), user.uid)
end

local function emit_session(user, ids, event_type, session, counts)
  local reason = session.reason and ',"reason":' .. cjson.encode(session.reason) or ''
  local flag = int(session.flag)
  emit_user(user, ids, 'onDemandEvents', event_type, '{"device_flag":' .. flag .. ',"device_id":' .. cjson.encode(session.device)
    .. ',"session_id":' .. cjson.encode(session.id) .. ',"device_online_count":' .. (counts[flag] or 0)
    .. ',"total_online_count":' .. counts.total .. reason .. '}')
end

-- Emits `session.opened` for the session `opened`, and `session.closed` for the entries that the
-- script has removed, with the number of sessions after these changes. `opened` is nil if the
-- script has added no session.
local function emit_sessions(user, opened, ids)
  if not opened and #user.left == 0 then return end
  local counts = { total = 0 }
  local all = redis.call('HVALS', user.sessions)
  for at = 1, #all do
    local flag = int(cjson.decode(all[at])[4])
    counts[flag], counts.total = (counts[flag] or 0) + 1, counts.total + 1
  end
  if opened then emit_session(user, ids, SESSION_OPENED, opened, counts) end
  for _, session in ipairs(user.left) do emit_session(user, ids, SESSION_CLOSED, session, counts) end
end

-- Writes the events of a script that has added the session `opened` or has removed entries.
-- `opened` is nil if the script has added no session. Returns true if the outbox may have entries
-- now.
--   ids        message id counter
--   on_demand  '1' if session events are written, else '0'
local function write_user_events(user, opened, ids, on_demand)
  if not opened and #user.left == 0 then return end
  if not has_user_feed(user) then return end
  if opened then
    if not redis.call('SET', user.announced, int(opened.flag), 'GET') then
      emit_online(user, ids, int(opened.flag))
    end
  elseif redis.call('EXISTS', user.sessions) == 0 then
    local last = user.left[#user.left]
    if redis.call('SET', user.announced, int(last.flag) .. ' ' .. int(NOW_MS), 'XX') then
      note_leaving(user)
    end
  end
  for _, session in ipairs(user.left) do
    if is_kick(session.reason) then emit_kick(user, ids, session) end
  end
  if on_demand == '1' then emit_sessions(user, opened, ids) end
  return user.bucket == OUTBOX
end
