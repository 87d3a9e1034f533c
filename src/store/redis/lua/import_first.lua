-- Keeps what a retry is answered (`dedupe.lua`), unless something newer is remembered.
-- KEYS  dd
-- ARGV  the value, which begins with Unix ms; for how long it is kept (ms)
-- Reply 1: kept, 0: there is a newer one
local before = redis.call('GET', KEYS[1])
local function at(value) return tonumber(string.match(value, '^%d+')) end
if before and at(before) > at(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
