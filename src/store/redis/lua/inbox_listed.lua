-- Records that an inbox is listed in `inboxDue` of the bucket, so that later copies need not list it.
-- Has no effect if the copy was removed, because a sweep may have removed the inbox from the list.
--
-- KEYS   1  inbox
--        2  inboxListed
-- ARGV   1  inboxSeq of the copy
--        2  time when the copy expires
--        3  time to live in ms
local id = ARGV[1] .. '-0'
if #redis.call('XRANGE', KEYS[1], id, id) == 0 then return end
local listed = redis.call('GET', KEYS[2])
if listed and tonumber(listed) <= tonumber(ARGV[2]) then return end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
