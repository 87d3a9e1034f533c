-- Confirms sessions that a node serves: checks that they may continue, enters them under the node's
-- incarnation if they are missing, and extends their expiry. Never ends a session that logged in
-- later. Notifies the watchers of a user if its entries change. A failure of one session does not
-- affect the others.
--
-- KEYS
--   `sessions` of each session's user
-- ARGV
--   1  incarnation
--   then for each session
--      uid
--      sessionId
--      flag
--      level
--      deviceId
--      tokenTag
--      tokenTag decoded to bytes, '' if the session needed no token
--      since     as the login returned it
--      order     as the login returned it
-- Reply
--   for each session {'confirmed'}, {'refused', reason} if a later session, an explicit end
--   or its device's token ended it, or {'failed', error}
local FIELDS = 9

-- Returns the reason for which the user's device ends the session, nil if it does not. A session
-- also continues if the store lost the device.
local function ended_by_device(user, mine)
  if mine.token == '' then return nil end
  local device = read_device(user, mine.flag)
  if not device then return nil end
  if device.hash == '' then return 'logged_out' end
  if mine.level == 1 and device.hash:sub(1, #mine.token) ~= mine.token then return 'token_changed' end
end

-- Returns the reason for which a missing session may not be entered again, or nil and the sessions
-- it ends.
local function ended_by_session(user, mine, newest)
  if newest and newest.order >= mine.order then
    if newest.order > mine.order and not same_device(mine, newest) then return 'kicked' end
    if newest.ended ~= '' then return newest.ended end
    if newest.since > mine.since then return 'replaced' end
  end
  local ends = {}
  for _, other in ipairs(read_entries(user, mine.id)) do
    if collide(mine, other) or continued(mine, other) then
      local reason = reason_of(other, mine)
      local isLater = other.since > mine.since
      if reason == 'kicked' then isLater = other.order > mine.order end
      if isLater then return reason end
      ends[#ends + 1] = other
    end
  end
  return nil, ends
end

local function confirm(user, mine)
  local here = read_entry(user, mine.id)
  local reason = ended_by_device(user, mine)
  if reason then
    if here then take_out(user, here, reason) end
    return { 'refused', reason }
  end
  if here then
    local is_mine = here.incarnation == mine.incarnation
    if is_mine and here.expires - NOW_MS > ENTRY_TTL / 2 then return { 'confirmed' } end
    read_entries(user, mine.id) -- removes expired entries
    write_entry(user, mine)
    if mine.level == 1 then redis.call('PEXPIRE', user.logins, LOGIN_TTL) end
    if not is_mine then publish_presence(user) end
    return { 'confirmed' }
  end
  reason = read_end(user, mine)
  if reason then return { 'refused', reason } end
  local newest = mine.level == 1 and read_login(user, int(mine.flag)) or nil
  local reason, ends = ended_by_session(user, mine, newest)
  if reason then return { 'refused', reason } end
  for _, other in ipairs(ends) do replace(user, mine, other) end
  if mine.level == 1 then follow_login(user, mine, '', newest) end
  write_entry(user, mine)
  publish_presence(user)
  return { 'confirmed' }
end

local replies = {}
for n, key in ipairs(KEYS) do
  local at = 1 + (n - 1) * FIELDS
  local mine = {
    incarnation = ARGV[1], id = ARGV[at + 2], flag = tonumber(ARGV[at + 3]), level = tonumber(ARGV[at + 4]), device = ARGV[at + 5],
    tag = ARGV[at + 6], token = ARGV[at + 7], since = tonumber(ARGV[at + 8]), order = tonumber(ARGV[at + 9]),
  }
  local ok, reply = pcall(confirm, user_of(key, ARGV[at + 1]), mine)
  if not ok then reply = { 'failed', type(reply) == 'table' and reply.err or tostring(reply) } end
  replies[n] = reply
end
return replies
