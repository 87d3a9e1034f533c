-- Where a channel stands: its newest publication and message, its active stream and others asked for, as far as they are there.
-- KEYS  1 head, 2 act, 3 id
-- ARGV  clientMsgNos of streams
-- Reply {pub, head seq, the last message id of the counter, {stream_snapshot, ...}}
local head = redis.call('HMGET', KEYS[1], 'pub', 'seq')
local streams, seen = {}, {}
local function show(no)
  if not no or seen[no] then return end
  seen[no] = true
  local snapshot = stream_snapshot(KEYS[1], no)
  if snapshot then streams[#streams + 1] = snapshot end
end
show(redis.call('GET', KEYS[2]))
for _, no in ipairs(ARGV) do show(no) end
local last_id = redis.call('GET', KEYS[3])
return { tonumber(head[1] or '0'), tonumber(head[2] or '0'), tonumber(last_id or '0'), streams }
