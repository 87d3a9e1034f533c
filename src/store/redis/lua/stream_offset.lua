-- Reads the length of a stream's text before one of its events. Read-only.
--
-- KEYS   1  head
-- ARGV   1  clientMsgNo
--        2  index of the event
--        3  Unix ms; an ended stream that started then or earlier is past retention. -1 means no
--           limit.
-- Reply  UTF-16 units, -1 if there is no such stream or index, or if the stream is past retention
local keys = stream_keys(KEYS[1], ARGV[1])
local fields = redis.call('HMGET', keys.stream, 't', 'e', 'n', 'l')
if not fields[1] then return -1 end
if tonumber(fields[2]) ~= STREAM_ACTIVE and tonumber(fields[1]) <= tonumber(ARGV[3]) then return -1 end
local index, next_index = tonumber(ARGV[2]), tonumber(fields[3])
if index > next_index then return -1 end
if index == next_index then return tonumber(fields[4]) end
return (struct.unpack('>I4', redis.call('GETRANGE', keys.offsets, index * 4, index * 4 + 3)))
