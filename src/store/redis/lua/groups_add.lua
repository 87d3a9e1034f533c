-- Adds a group to users' group indexes, and optionally publishes a notification. Must run before a
-- script that may make these users members of the group.
--
-- KEYS   groups of each user
-- ARGV   group_id
--        topic     of the user, absent if no user is notified
--        frame     to publish on that topic
local group_id, topic, frame = ARGV[1], ARGV[2], ARGV[3]
local now = redis.call('TIME')[1]
for _, groups in ipairs(KEYS) do redis.call('HSET', groups, group_id, now) end
if topic then redis.call('SPUBLISH', topic, frame) end
return 0
