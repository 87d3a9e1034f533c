-- Adds a user to `online`, so that a node checks the user's sessions and moves the events from the
-- user's outbox to the feed. Always changes the user's score, see `online_forget.lua`.
--
-- ARGV   uid
local online = KEYS[1]
local uid = ARGV[1]
write_when_full(online)
local score = tonumber(redis.call('ZSCORE', online, uid) or '0')
redis.call('ZADD', online, int(math.max(server_now, score + 1)), uid)
