-- Enters a group into the index of users' groups, before the script that may make them members.
-- KEYS  groups of each user
-- ARGV  group id; of one user also its topic and a frame to publish there
-- Reply 0
local now = redis.call('TIME')[1]
for _, groups in ipairs(KEYS) do redis.call('HSET', groups, ARGV[1], now) end
if ARGV[2] then redis.call('SPUBLISH', ARGV[2], ARGV[3]) end
return 0
