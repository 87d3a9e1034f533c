-- Records whether the client of a session is in the background. Has no effect for an unknown
-- session.
--
-- KEYS   1  sessions
-- ARGV   1  sessionId
--        2  1 if the client is in the background, else 0

-- Index of `background` in an entry, see `session_rules.lua`.
local BACKGROUND = 10
local text = redis.call('HGET', KEYS[1], ARGV[1])
if not text then return end
local entry = cjson.decode(text)
entry[BACKGROUND] = ARGV[2] == '1' and 1 or nil
redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(entry))
