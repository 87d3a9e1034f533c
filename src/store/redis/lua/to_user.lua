-- Publishes to one user what was published in a personal channel, where the channel's own script
-- cannot: on a Redis Cluster the user is in another slot. Harmless to repeat: receivers drop what
-- they had by its number.
-- KEYS  1 peers
-- ARGV  1 topic, 2 frame, 3 the other user, 4 Unix ms of a kept message ('': nothing to enter)
-- Reply number of receivers
if ARGV[4] ~= '' then redis.call('ZADD', KEYS[1], 'GT', ARGV[4], ARGV[3]) end
return redis.call('SPUBLISH', ARGV[1], ARGV[2])
