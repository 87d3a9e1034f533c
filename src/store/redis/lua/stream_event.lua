-- Adds an event to an active stream: content, a tool call or the end of the stream.
--
-- KEYS   1  head
--        then `streams` of the users of a personal channel, unless they are in other slots
-- ARGV   1   channel key
--        2   clientMsgNo
--        3   now                      Unix ms
--        4   window for retries       ms, counted from the end of the stream
--        5   kind                     c content, n tool call, e end
--        6   event id                 '' if there is none
--        7   data
--        8   UTF-16 units of data
--        9   bytes that count against the maximum
--        10  maximum bytes of a stream
--        11  part of the event's record after the event id
--        12  mark of the event        see `store/event-ids.ts`; '' if nothing is remembered
--        13  1 if an end cancels the stream, else 0
--        then the topics, none if the users are in other slots
-- Reply  see `stream_steps.lua`. The verdict may also be `too_large`.
local client_msg_no, kind, id, mark = ARGV[2], ARGV[5], ARGV[6], ARGV[12]
local call = { head = KEYS[1], channel = ARGV[1], now = tonumber(ARGV[3]), indexes = { unpack(KEYS, 2) }, topics = 14 }
local stream = load_stream(call, client_msg_no)
if not stream then return step_reply(call, 'missing') end
if stream.state ~= STREAM_ACTIVE then return late_reply(call, stream, kind, id, mark) end
if is_retry(stream, id, mark) then
  publish_again(call, stream)
  return step_reply(call, 'done', stream.state)
end
local data, bytes = ARGV[7], tonumber(ARGV[9])
local is_empty_end = kind == 'e' and data == ''
if not is_empty_end and stream.bytes + bytes > tonumber(ARGV[10]) then return step_reply(call, 'too_large', stream.state) end
local end_state = ARGV[13] == '1' and STREAM_CANCELLED or STREAM_CLOSED
local state = kind == 'e' and end_state or STREAM_ACTIVE
add_event(call, stream, { id = id, mark = mark, kind = kind, data = data, units = tonumber(ARGV[8]), bytes = bytes, state = state, tail = ARGV[11] })
if kind == 'e' then close_stream(call, stream, tonumber(ARGV[4])) end
return step_reply(call, 'done', stream.state)
