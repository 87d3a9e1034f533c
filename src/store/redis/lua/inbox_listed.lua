-- Records that an inbox is listed in `inboxDue` of the bucket, so that the inbox need not be listed
-- again for later copies. Has no effect if the copy `seq` was removed, because a sweep may have
-- removed the inbox from `inboxDue`.
--
-- ARGV   seq     inboxSeq of the copy
--        ends    time when the copy expires
--        ttl_ms  time to live of the record
local inbox, inbox_listed = KEYS[1], KEYS[2]
local seq, ends, ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local id = seq .. '-0'
if #redis.call('XRANGE', inbox, id, id) == 0 then return end
local listed = redis.call('GET', inbox_listed)
if listed and tonumber(listed) <= tonumber(ends) then return end
redis.call('SET', inbox_listed, ends, 'PX', ttl_ms)
