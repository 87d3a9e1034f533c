-- Makes sure that sessions which a node serves may go on, are in under the node's incarnation, and
-- do not expire. It never ends one that logged in later. Notifies those who watch a user of what it
-- changed. What goes wrong for one session says nothing of the others.
-- KEYS: of each session, its user's sessions
-- ARGV: incarnation; of each session: uid, sessionId, flag, level, deviceId, tokenTag, the same in
--   bytes ('': it needed no token), since, order (as its
--   login gave them)
-- Reply: of each session {'confirmed'}, {'refused', reason} (a later one, the end of the session or
--   its device's token ended it) or {'failed', why}
local FIELDS = 9

-- Why a session may not go on as far as its user's devices say; nil: it may, or the store lost the
-- device, and nobody took the right away.
local function ended_by_device(user, mine)
  if mine.token == '' then return nil end
  local device = read_device(user, mine.flag)
  if not device then return nil end
  if device.hash == '' then return 'logged_out' end
  if mine.level == 1 and device.hash:sub(1, #mine.token) ~= mine.token then return 'token_changed' end
end

-- Why one that is missing may not be entered again; or nil, and the sessions that it ends.
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
    read_entries(user, mine.id) -- drops what expired
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
