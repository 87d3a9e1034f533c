-- Publishes a frame to a user of a personal channel in another slot of the Redis Cluster. Repeating
-- the call has no effect: receivers drop publications that they already have.
--
-- KEYS
--   1  peers
-- ARGV
--   1  topic
--   2  frame
--   3  uid of the other user
--   4  Unix ms of a stored message, '' if `peers` is not changed
-- Reply
--   number of receivers
if ARGV[4] ~= '' then redis.call('ZADD', KEYS[1], 'GT', ARGV[4], ARGV[3]) end
return redis.call('SPUBLISH', ARGV[1], ARGV[2])
