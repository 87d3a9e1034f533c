-- Ends an active stream because a viewer cancels it (the producer's next event is then answered
-- `stopped`) or because it has had no event for too long.
--
-- KEYS   1  head
--        2  activeStreams of the bucket
--        then `streams` of the users of a personal channel, unless they are in other slots
-- ARGV   1  channel key
--        2  clientMsgNo
--        3  now                      Unix ms
--        4  window for retries       ms
--        5  silent since             Unix ms; the stream ends only if it has had no event since
--                                    then; '' if a viewer cancels it
--        then the topics, none if the users are in other slots
-- Reply  see `stream_steps.lua`. For a silent stream the verdict is `done` if this call ended it,
--        else `missing`.
local call = { head = KEYS[1], channel = ARGV[1], now = tonumber(ARGV[3]), indexes = { unpack(KEYS, 3) }, topics = 6 }
local since, name = tonumber(ARGV[5]), ARGV[1] .. '\n' .. ARGV[2]
if since then
  local last = redis.call('ZSCORE', KEYS[2], name)
  if not last or tonumber(last) >= since then return step_reply(call, 'missing') end
end
local stream = load_stream(call, ARGV[2])
local is_ended = not stream or stream.state ~= STREAM_ACTIVE
if not is_ended then
  end_stream(call, stream, { state = since and STREAM_INTERRUPTED or STREAM_CANCELLED, stopped = not since, ids_ms = tonumber(ARGV[4]) })
elseif stream then
  publish_again(call, stream)
end
if not stream or since and is_ended then
  if since and not call.frames then redis.call('ZREM', KEYS[2], name) end
  return step_reply(call, 'missing', stream and stream.state)
end
return step_reply(call, 'done', stream.state)
