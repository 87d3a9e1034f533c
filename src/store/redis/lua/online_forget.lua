-- Removes a user from `online` unless `online_announce.lua` was called since the caller read the
-- score.
--
-- ARGV   uid
--        read_score  the user's score as the caller read it
local online = KEYS[1]
local uid, read_score = ARGV[1], ARGV[2]
local score = redis.call('ZSCORE', online, uid)
if score and tonumber(score) == tonumber(read_score) then redis.call('ZREM', online, uid) end
