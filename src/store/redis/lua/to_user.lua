-- Publishes a frame to one user of a personal channel on a Redis Cluster, where the user and the
-- channel are in different slots. A repeated call is safe, because receivers drop publications that
-- they already have.
--
-- KEYS   1  peers of the user
-- ARGV   1  topic
--        2  frame
--        3  uid of the other user
--        4  Unix ms in the id of the stored message in the frame, '' to leave `peers` unchanged
-- Reply  number of receivers
if ARGV[4] ~= '' then redis.call('ZADD', KEYS[1], 'GT', ARGV[4], ARGV[3]) end
return redis.call('SPUBLISH', ARGV[1], ARGV[2])
