-- Logs a session in: checks the token, removes the sessions that the login ends [decisions: Kick
-- rule], and notifies their nodes and the user's watchers. A repeated call for the same session
-- does not end it. A session that continues an earlier one gets the order of the earlier login or
-- is refused [decisions: resume is no login].
--
-- KEYS   sessions       of the user
--        message_ids    message id counter, absent on a Redis Cluster
-- ARGV   uid
--        session_id
--        incarnation    incarnation of the session's node
--        flag, level, device_id, token_tag
--        claimed_order  order of the login that the session continues, '' for none
--        label          label of the login that the session continues, '' for none
--        proof          `token` if the device must have the token (the session then gets the
--                       device's level), `jwt` if it must not have been logged out after the JWT
--                       was issued, else `none`
--        proof_value    hash of the token; with `jwt`, Unix second at which the JWT was issued; ''
--                       with `none`
--        judgement      `judge` if a banned account is refused, else `ignore`
--        level_rule     `secondary` if the session gets level 0 regardless of the device's level,
--                       else `any`
--        bucket         bucket of the user's events, see `user_feed.lua`
--        event_ids      key of the message id counter, for the user's events
--        on_demand      1 if session events are written, else 0
--        is_announced   1 if the user is listed in `online` of the bucket, else 0
-- Reply  one of
--          {'entered', since, order, level, group ids in the user's index, newest message id}
--          {'refused', reason}
--          {'unauthorized'}     the device does not have the token, or the JWT is revoked
--          'announce' or 'full'  see `outbox_demand`
local sessions, message_ids = KEYS[1], KEYS[2]
local uid, session_id, incarnation, flag, level, device_id, token_tag = unpack(ARGV, 1, 7)
local claimed_order, label, proof, proof_value, judgement, level_rule = unpack(ARGV, 8, 13)
local bucket, event_ids, on_demand, is_announced = unpack(ARGV, 14, 17)
local user = user_of(sessions, uid, bucket)
local session = {
  id = session_id, incarnation = incarnation, flag = tonumber(flag), level = tonumber(level), device = device_id, tag = token_tag,
}
local order = tonumber(claimed_order)
if proof == 'token' then
  local device = read_device(user, flag)
  -- A device that logged out has an empty token hash.
  if not device or proof_value == '' or device.hash ~= proof_value then return { 'unauthorized' } end
  session.level = level_rule == 'secondary' and 0 or device.level
elseif proof == 'jwt' then
  local device = read_device(user, flag)
  if device and tonumber(proof_value) < device.revoked then return { 'unauthorized' } end
end
if judgement == 'judge' and is_banned(user) then return { 'refused', 'banned' } end
local demand = outbox_demand(user, is_announced)
if demand then return demand end
local is_main = session.level == 1
local newest = is_main and read_login(user, flag) or nil

-- Returns the reply of a refused login. Also writes the events of the expired entries, because
-- `read_entries` removes the entries even if the login is refused.
local function refuse(reason)
  write_user_events(user, nil, event_ids, on_demand)
  return { 'refused', reason }
end

local since, last_order = NOW, 0
local others, expired = read_entries(user, session.id)
if newest then
  since = math.max(since, newest.since + 1)
  last_order = newest.order
end
for _, old in ipairs(others) do
  since = math.max(since, old.since + 1)
  last_order = math.max(last_order, old.order)
end

if newest and label ~= '' then
  if label == newest.label then order = newest.order end
  for _, past_label in ipairs(newest.past) do
    if past_label == label then order = 0 end
  end
end
if order and order > math.max(NOW, last_order) then order = nil end
if order and is_main then
  if newest and newest.order >= order then
    if newest.order > order and not same_device(session, newest) then return refuse('kicked') end
    -- A login that was ended by a ban can be continued after the ban.
    if newest.ended ~= '' and newest.ended ~= 'banned' then return refuse(newest.ended) end
    order = newest.order
  end
  for _, old in ipairs(others) do
    if old.order > order and collide(session, old) then
      if not same_device(session, old) then return refuse('kicked') end
      order = old.order
    end
  end
end
session.since, session.order = since, order or math.max(NOW, last_order + 1)

-- A login also ends sessions whose entries have expired, because a node that could not extend the
-- entries may still be serving the sessions.
for _, old in ipairs(expired) do others[#others + 1] = old end
for _, old in ipairs(others) do
  if collide(session, old) or same_login(session, old) then replace(user, session, old) end
end
if is_main then set_newest_login(user, session, label, newest) end
write_entry(user, session)
publish_presence(user)
write_user_events(user, session, event_ids, on_demand)
local newest_id = message_ids and redis.call('GET', message_ids) or '0'
return { 'entered', int(since), int(session.order), int(session.level), redis.call('HKEYS', user.groups), newest_id }
