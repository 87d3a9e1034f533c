-- A stream as it is now.
-- KEYS: head, activeStream. ARGV: 1 clientMsgNo ("": the channel's active stream), 2 Unix ms
--   through which an ended stream's start is past retention (-1: none),
-- 3 version that the caller has. Reply: what `stream_snapshot` returns; nil: there is no such
-- stream.
local no = ARGV[1] ~= '' and ARGV[1] or redis.call('GET', KEYS[2])
if not no then return false end
local at = redis.call('HMGET', stream_keys(KEYS[1], no).stream, 't', 'e')
if not at[1] then return false end
if tonumber(at[2]) ~= STREAM_ACTIVE and tonumber(at[1]) <= tonumber(ARGV[2]) then return false end
return stream_snapshot(KEYS[1], no, ARGV[3])
