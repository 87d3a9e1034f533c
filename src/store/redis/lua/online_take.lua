-- Returns users of a bucket whose sessions must be checked: first users whose last session has
-- left, then users who were not checked for long.
--
-- KEYS   1  leaving
--        2  online
-- ARGV   1  maximum number of users
--        2  Unix ms: users who left at this time or earlier are returned
--        3  Unix ms: users who were checked before this time are returned
local uids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[2], 'LIMIT', 0, ARGV[1])
local room = tonumber(ARGV[1]) - #uids
if room <= 0 then return uids end
for _, uid in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[3], 'LIMIT', 0, room)) do
  redis.call('ZADD', KEYS[2], 'XX', int(server_now), uid)
  uids[#uids + 1] = uid
end
return uids
