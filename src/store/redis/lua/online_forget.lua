-- Removes a user from `online` unless `online_announce.lua` was called since the caller read the
-- score.
--
-- KEYS   1  online
-- ARGV   1  uid
--        2  score of the user as the caller read it
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) == tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
