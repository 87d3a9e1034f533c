-- Reads a stream. Read-only.
--
-- ARGV   client_msg_no       clientMsgNo of the stream to read
--        past_ms             Unix ms: an ended stream that started at this time or earlier is past
--                            retention. -1 means no limit.
--        cached_no           clientMsgNo of the stream if the caller already has events of it,
--                            else ''
--        cached_incarnation  incarnation of that stream
--        cached_position     position after these events
--        cached_check        last four bytes before that position
--        now                 Unix ms: an ended stream whose message expires at this time or earlier
--                            is not shown
-- Reply  `stream_snapshot`, nil if the stream does not exist, is past retention or has expired
local head = KEYS[1]
local client_msg_no, past_ms, cached_no, cached_incarnation, cached_position, cached_check, now = unpack(ARGV)
local fields = redis.call('HMGET', stream_keys(head, client_msg_no).head, 'm', 'c', 'e')
if not fields[1] then return false end
if fields[2] and fields[3] and tonumber(now) >= tonumber(fields[3]) then return false end
if fields[2] and message_ms(struct.unpack('>d', fields[1])) <= tonumber(past_ms) then return false end
return stream_snapshot(head, client_msg_no, cached_no == client_msg_no and { cached_incarnation, cached_position, cached_check })
