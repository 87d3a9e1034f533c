-- Lists an inbox in `inboxDue` of the bucket, with the time when its next copy expires. Always
-- changes the score, so that `inbox_swept.lua` keeps the inbox. A score that is already low enough
-- is lowered by a microsecond.
--
-- KEYS   1  inboxDue
-- ARGV   1  uid
--        2  time when a copy expires
local listed = redis.call('ZSCORE', KEYS[1], ARGV[1])
local score = listed and tonumber(listed) or math.huge
local ends = tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], score > ends and ARGV[2] or string.format('%.3f', score - 0.001), ARGV[1])
