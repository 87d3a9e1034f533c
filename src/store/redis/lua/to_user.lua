-- Publishes a frame to one user of a personal channel on a Redis Cluster, where the user and the
-- channel are in different slots. A repeated call is safe, because receivers drop publications that
-- they already have.
--
-- KEYS   peers      of the user
-- ARGV   topic      topic of the user
--        frame      frame to publish
--        peer_uid   uid of the other user
--        stored_ms  Unix ms in the id of the stored message in the frame, '' to leave `peers`
--                   unchanged
-- Reply  number of receivers
local peers = KEYS[1]
local topic, frame, peer_uid, stored_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if stored_ms ~= '' then redis.call('ZADD', peers, 'GT', stored_ms, peer_uid) end
return redis.call('SPUBLISH', topic, frame)
