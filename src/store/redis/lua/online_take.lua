-- Returns users whose sessions must be checked, from several buckets: first users whose last
-- session left at `last_leave` or earlier, then users who were last checked before
-- `checked_before`. Records the current time as the last check of the users in the second group.
--
-- KEYS   leaving and online of each bucket
-- ARGV   max_users
--        last_leave      Unix ms: users who left at this time or earlier are returned
--        checked_before  Unix ms: users who were checked before this time are returned
local max_users, last_leave, checked_before = ARGV[1], ARGV[2], ARGV[3]
local MAX_AHEAD_MS = 60000 -- a score further ahead was written before the clock was set back
local uids, room = {}, tonumber(max_users)
local later = '(' .. int(server_now + MAX_AHEAD_MS)

local function take(key, from, to, checked)
  if room == 0 then return end
  for _, uid in ipairs(redis.call('ZRANGEBYSCORE', key, from, to, 'LIMIT', 0, room)) do
    if checked then redis.call('ZADD', key, 'XX', checked, uid) end
    uids[#uids + 1] = uid
    room = room - 1
  end
end

for at = 1, #KEYS, 2 do
  local leaving = KEYS[at]
  take(leaving, '-inf', last_leave)
  take(leaving, later, '+inf')
end
for at = 1, #KEYS, 2 do
  local online = KEYS[at + 1]
  take(online, '-inf', '(' .. checked_before, int(server_now))
  take(online, later, '+inf', int(server_now))
end
return uids
