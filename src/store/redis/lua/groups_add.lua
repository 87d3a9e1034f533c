-- Adds a group to the group indexes of users, and optionally publishes a notification. Must run
-- before a script that may make these users members of the group.
--
-- KEYS   groups of each user
-- ARGV   1  group id
--        2  topic of the user, absent if no user is notified
--        3  frame to publish on that topic
local now = redis.call('TIME')[1]
for _, groups in ipairs(KEYS) do redis.call('HSET', groups, ARGV[1], now) end
if ARGV[2] then redis.call('SPUBLISH', ARGV[2], ARGV[3]) end
return 0
