-- Lists a user in `online`, so that a node looks at the user's sessions and moves the events in the
-- user's outbox. Always changes the score of the user, see `online_forget.lua`.
--
-- KEYS   1  online
-- ARGV   1  uid
local score = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0')
redis.call('ZADD', KEYS[1], int(math.max(server_now, score + 1)), ARGV[1])
