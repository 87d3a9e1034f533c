-- Returns the users of some buckets whose sessions must be checked: first users whose last session
-- has left, then users whose last check was a long time ago. Records the current time as the last
-- check of the latter.
--
-- KEYS   leaving and online of each bucket
-- ARGV   1  maximum number of users
--        2  Unix ms: users who left at this time or earlier are returned
--        3  Unix ms: users who were checked before this time are returned
local MAX_AHEAD_MS = 60000 -- a later time was written before the clock was set back, and is due
local uids, room = {}, tonumber(ARGV[1])
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
  take(KEYS[at], '-inf', ARGV[2])
  take(KEYS[at], later, '+inf')
end
for at = 2, #KEYS, 2 do
  take(KEYS[at], '-inf', '(' .. ARGV[3], int(server_now))
  take(KEYS[at], later, '+inf', int(server_now))
end
return uids
