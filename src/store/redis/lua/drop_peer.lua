-- Removes a peer from a user's `peers` unless a message has changed the peer's score since the
-- caller read it.
--
-- KEYS   1  peers
-- ARGV   1  uid of the peer
--        2  score of the peer as the caller read it
-- Reply  1 if the peer was removed, else 0
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) == tonumber(ARGV[2]) then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0
