-- Confirms sessions that a node serves: extends the expiry of an existing entry, and adds a missing
-- entry again if the session may continue. Never ends a session that logged in later. A failure for
-- one session does not affect the others.
--
-- KEYS   `sessions` of each session's user
-- ARGV   incarnation   incarnation of the node
--        judgement     `judge` if sessions of banned accounts are refused, else `ignore`
--        event_ids     message id counter
--        on_demand     1 if session events are written, else 0
--        is_announced  1 if the users are listed in `online` of their buckets, else 0
--        then for each session
--          uid
--          bucket      bucket of the user's events, see `user_feed.lua`
--          id          sessionId
--          flag
--          level
--          device      deviceId
--          tag         tokenTag
--          token       tokenTag decoded to bytes, '' if the session needed no token
--          since       as the login returned it
--          order       as the login returned it
--          background  1 if its client is in the background, else ''
-- Reply  for each session one of
--          {'confirmed'}
--          {'refused', reason}   ended by a later session, `session_end.lua`, its device or a ban
--          {'failed', error}
--          {'announce'} or {'full'}  nothing was changed, see `outbox_demand`
--        The third item of each list is 1 if the user's outbox may have entries now, else absent.
local incarnation, judgement, event_ids, on_demand, is_announced = unpack(ARGV, 1, 5)
local FIRST_SESSION = 6
local FIELDS = 11

-- Returns the reason why the session's device ends the session, nil if it does not. A device that
-- is not stored ends no session, because a fail-over may have lost the device.
local function device_end_reason(user, session)
  if session.token == '' then return nil end
  local device = read_device(user, session.flag)
  if not device then return nil end
  if device.hash == '' then return 'logged_out' end
  if session.level == 1 and device.hash:sub(1, #session.token) ~= session.token then return 'token_changed' end
end

-- Returns the reason why the session must not continue. If there is no such reason, returns nil and
-- the list of sessions that this session ends.
local function session_end_reason(user, session, newest)
  if newest and newest.order >= session.order then
    if newest.order > session.order and not same_device(session, newest) then return 'kicked' end
    if newest.ended ~= '' then return newest.ended end
    if newest.since > session.since then return 'replaced' end
  end
  local ended = {}
  for _, other in ipairs(read_entries(user, session.id)) do
    if collide(session, other) or same_login(session, other) then
      local reason = reason_of(other, session)
      local is_later = other.since > session.since
      if reason == 'kicked' then is_later = other.order > session.order end
      if is_later then return reason end
      ended[#ended + 1] = other
    end
  end
  return nil, ended
end

-- Returns the reply for a session that has no entry and must not continue. If the session was
-- kicked and the feed lacks the event, notes the end of the session, so that the event is written.
-- A fail-over may have lost the entry before a later login could remove it and write the event.
local function refuse_absent(user, session, reason)
  if is_kick(reason) and not has_kick_event(user, session) then note_left(user, session, reason) end
  return { 'refused', reason }
end

local function confirm(user, session)
  local entry = read_entry(user, session.id)
  local reason = judgement == 'judge' and is_banned(user) and 'banned' or device_end_reason(user, session)
  local is_own = entry and entry.incarnation == session.incarnation
  if not reason and is_own and entry.expires - NOW_MS > ENTRY_TTL / 2 then return { 'confirmed' } end
  if entry or reason then write_when_full(user.sessions) end
  local demand = outbox_demand(user, is_announced)
  if demand then return { demand } end
  if reason then
    if not entry then return refuse_absent(user, session, reason) end
    remove_entry(user, entry, reason)
    return { 'refused', reason }
  end
  if entry then
    read_entries(user, session.id) -- removes expired entries
    write_entry(user, session)
    if session.level == 1 then redis.call('PEXPIRE', user.logins, LOGIN_TTL) end
    if not is_own then publish_presence(user) end
    return { 'confirmed' }
  end
  reason = read_end(user, session)
  if reason then return refuse_absent(user, session, reason) end
  local newest = session.level == 1 and read_login(user, int(session.flag)) or nil
  local reason, ended = session_end_reason(user, session, newest)
  if reason then return refuse_absent(user, session, reason) end
  for _, other in ipairs(ended) do replace(user, session, other) end
  if session.level == 1 then set_newest_login(user, session, '', newest) end
  write_entry(user, session)
  publish_presence(user)
  return { 'confirmed' }, session
end

local replies = {}
for position, sessions in ipairs(KEYS) do
  local first = FIRST_SESSION + (position - 1) * FIELDS
  local uid, bucket, id, flag, level, device, tag, token, since, order, background = unpack(ARGV, first, first + FIELDS - 1)
  local session = {
    incarnation = incarnation, id = id, flag = tonumber(flag), level = tonumber(level), device = device, tag = tag, token = token,
    since = tonumber(since), order = tonumber(order), background = tonumber(background),
  }
  local user = user_of(sessions, uid, bucket)
  local is_ok, reply, opened = pcall(confirm, user, session)
  -- After a failed confirmation, only the events of the entries that it has removed are written.
  local is_written, result = pcall(write_user_events, user, is_ok and opened or nil, event_ids, on_demand)
  if not is_ok or not is_written then
    local failure = is_ok and result or reply
    reply = { 'failed', type(failure) == 'table' and failure.err or tostring(failure) }
  end
  if is_written and result then
    reply[2] = reply[2] or ''
    reply[3] = 1
  end
  replies[position] = reply
end
return replies
