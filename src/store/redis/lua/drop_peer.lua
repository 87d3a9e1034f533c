-- Removes a peer from a user's `peers` unless a message has changed the peer's score since the
-- caller read it.
--
-- ARGV   peer_uid    uid of the peer
--        read_score  score of the peer as the caller read it
-- Reply  1 if the peer was removed, else 0
local peers = KEYS[1]
local peer_uid, read_score = ARGV[1], ARGV[2]
local score = redis.call('ZSCORE', peers, peer_uid)
if score and tonumber(score) == tonumber(read_score) then return redis.call('ZREM', peers, peer_uid) end
return 0
