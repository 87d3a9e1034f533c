-- UTF-16 units of a stream's text before one of its events.
-- KEYS: head. ARGV: 1 clientMsgNo, 2 index, 3 Unix ms through which an ended stream's start is past
--   retention (-1: none).
-- Reply: units; -1: there is no such stream or index.
local keys = stream_keys(KEYS[1], ARGV[1])
local s = redis.call('HMGET', keys.stream, 't', 'e', 'n', 'l')
if not s[1] then return -1 end
if tonumber(s[2]) ~= STREAM_ACTIVE and tonumber(s[1]) <= tonumber(ARGV[3]) then return -1 end
local index, next_index = tonumber(ARGV[2]), tonumber(s[3])
if index > next_index then return -1 end
if index == next_index then return tonumber(s[4]) end
return (struct.unpack('>I4', redis.call('GETRANGE', keys.offsets, index * 4, index * 4 + 3)))
