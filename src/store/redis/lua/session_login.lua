-- Logs a session in: checks the token, removes the sessions that the login ends [decisions: Kick
-- rule], and notifies their nodes and the user's watchers. A repeated call for the same session
-- does not end it. A session that continues an earlier one gets the order of the earlier login or
-- is refused [decisions: resume is no login].
--
-- KEYS   1  sessions
--        2  newest message id, absent on a Redis Cluster
-- ARGV   1   uid
--        2   sessionId
--        3   incarnation
--        4   flag
--        5   level
--        6   deviceId
--        7   tokenTag
--        8   order of the login that the session continues, '' if it names none
--        9   label of the login that the session continues, '' if it names none
--        10  `token` if the device must have the token (the session then gets the device's level),
--            `jwt` if it must not have been logged out after the JWT was issued, else `none`
--        11  hash of the token; with `jwt`, Unix second at which the JWT was issued; '' with `none`
--        12  `judge` if a banned account is refused, else `ignore`
--        13  `secondary` if the session gets level 0 whatever the level of the device, else `any`
--        14  beginning of the names of the keys of the bucket of the user's events, or ''
--        15  counter of message ids
--        16  1 if the events of sessions are written, else 0
--        17  1 if the user is listed in `online` of the bucket, else 0
-- Reply  one of
--          {'entered', since, order, level, group ids in the user's index, newest message id}
--          {'refused', reason}
--          {'unauthorized'}     the device does not have the token, or the JWT is revoked
--          'announce' or 'full'  see `outbox_demand`
local user = user_of(KEYS[1], ARGV[1], ARGV[14])
local session = {
  id = ARGV[2], incarnation = ARGV[3], flag = tonumber(ARGV[4]), level = tonumber(ARGV[5]), device = ARGV[6], tag = ARGV[7],
}
local order, label = tonumber(ARGV[8]), ARGV[9]
if ARGV[10] == 'token' then
  local device = read_device(user, ARGV[4])
  -- A device that logged out has an empty token hash.
  if not device or ARGV[11] == '' or device.hash ~= ARGV[11] then return { 'unauthorized' } end
  session.level = ARGV[13] == 'secondary' and 0 or device.level
elseif ARGV[10] == 'jwt' then
  local device = read_device(user, ARGV[4])
  if device and tonumber(ARGV[11]) < device.revoked then return { 'unauthorized' } end
end
if ARGV[12] == 'judge' and is_banned(user) then return { 'refused', 'banned' } end
local demand = outbox_demand(user, ARGV[17])
if demand then return demand end
local is_main = session.level == 1
local newest = is_main and read_login(user, ARGV[4]) or nil

-- Returns the reply of a refused login. Also writes the events of the expired entries, because
-- these are removed even if the login is refused.
local function refuse(reason)
  write_user_events(user, nil, ARGV[15], ARGV[16])
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

-- Expired entries count too, because a node that could not extend them may still serve the
-- sessions.
for _, old in ipairs(expired) do others[#others + 1] = old end
for _, old in ipairs(others) do
  if collide(session, old) or same_login(session, old) then replace(user, session, old) end
end
if is_main then set_newest_login(user, session, label, newest) end
write_entry(user, session)
publish_presence(user)
write_user_events(user, session, ARGV[15], ARGV[16])
local newest_id = KEYS[2] and redis.call('GET', KEYS[2]) or '0'
return { 'entered', int(since), int(session.order), int(session.level), redis.call('HKEYS', user.groups), newest_id }
