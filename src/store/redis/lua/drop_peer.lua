-- Removes a peer from a user's list, unless a message arrived since the list was read.
--
-- KEYS
--   1  peers
-- ARGV
--   1  uid of the peer
--   2  score of the peer when the list was read
-- Reply
--   1 if the peer was removed, else 0
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) == tonumber(ARGV[2]) then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0
