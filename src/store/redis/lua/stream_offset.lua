-- UTF-16 units of a stream's text before one of its events.
-- KEYS: head. ARGV: 1 clientMsgNo, 2 index, 3 Unix ms through which an ended stream's start is past retention (-1: none).
-- Reply: {pub, units}; units -1: there is no such stream or index.
local pub = tonumber(redis.call('HGET', KEYS[1], 'pub') or '0')
local keys = stream_keys(KEYS[1], ARGV[1])
local s = redis.call('HMGET', keys.s, 't', 'e', 'n', 'l')
if not s[1] then return { pub, -1 } end
if tonumber(s[2]) ~= STREAM_ACTIVE and tonumber(s[1]) <= tonumber(ARGV[3]) then return { pub, -1 } end
local index, next_index = tonumber(ARGV[2]), tonumber(s[3])
if index > next_index then return { pub, -1 } end
if index == next_index then return { pub, tonumber(s[4]) } end
return { pub, (struct.unpack('>I4', redis.call('GETRANGE', keys.so, index * 4, index * 4 + 3))) }
