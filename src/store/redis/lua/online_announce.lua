-- Lists a user in `online`, so that a node looks at the user's sessions and moves the events in the
-- user's outbox. Always changes the score of the user, see `online_forget.lua`.
local online = KEYS[1]
local uid = ARGV[1]
local score = tonumber(redis.call('ZSCORE', online, uid) or '0')
redis.call('ZADD', online, int(math.max(server_now, score + 1)), uid)
