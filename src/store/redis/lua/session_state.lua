-- Records whether a session's client is in the background. Has no effect if the session has no
-- entry.
--
-- ARGV   session_id
--        is_background  1 if the client is in the background, else 0
local sessions = KEYS[1]
local session_id, is_background = ARGV[1], ARGV[2]
-- Index of `background` in an entry, see `session_rules.lua`.
local BACKGROUND = 10
local text = redis.call('HGET', sessions, session_id)
if not text then return end
local entry = cjson.decode(text)
entry[BACKGROUND] = is_background == '1' and 1 or nil
redis.call('HSET', sessions, session_id, cjson.encode(entry))
