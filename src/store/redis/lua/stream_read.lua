-- Reads a stream. Read-only.
--
-- KEYS   1  head
-- ARGV   1  clientMsgNo
--        2  Unix ms; an ended stream that started then or earlier is past retention. -1 means no
--           limit.
--        3  clientMsgNo of the stream if the caller already has events of it, or ''
--        4-6 incarnation of that stream, the position after these events, and the last four bytes
--            before that position
--        7  Unix ms; an ended stream whose message expires then or earlier is not shown
-- Reply  `stream_snapshot`, nil if there is no such stream, or it is past retention or has expired
local client_msg_no = ARGV[1]
local fields = redis.call('HMGET', stream_keys(KEYS[1], client_msg_no).head, 'm', 'c', 'e')
if not fields[1] then return false end
if fields[2] and fields[3] and tonumber(ARGV[7]) >= tonumber(fields[3]) then return false end
if fields[2] and message_ms(struct.unpack('>d', fields[1])) <= tonumber(ARGV[2]) then return false end
return stream_snapshot(KEYS[1], client_msg_no, ARGV[3] == client_msg_no and { ARGV[4], ARGV[5], ARGV[6] })
