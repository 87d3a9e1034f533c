-- Adds an inbox to `inboxDue` of the bucket, with the time when its next copy expires. Always
-- changes the score, so that `inbox_swept.lua` keeps the inbox. A score that is not higher than
-- `ends` is lowered by a microsecond.
--
-- ARGV   uid   user of the inbox
--        ends  time when a copy expires
local inbox_due = KEYS[1]
local uid, ends = ARGV[1], ARGV[2]
local listed = redis.call('ZSCORE', inbox_due, uid)
local score = listed and tonumber(listed) or math.huge
redis.call('ZADD', inbox_due, score > tonumber(ends) and ends or string.format('%.3f', score - 0.001), uid)
