-- Moves the entries of a user's outbox to the feed, each entry exactly once (see `user_feed.lua`).
-- If the feed is off, their events are dropped.
--
-- KEYS   feed, events and onDemandEvents of the bucket
--        counter      message id counter
--        online and leaving of the bucket
--        outbox_seen  of the user: number of the last entry that was moved, kept for a day
-- ARGV   bucket       of the counter
--        uid
--        then the entries
-- Reply  number of the last entry that was moved
local feed, events, on_demand_events, counter, online, leaving, outbox_seen = unpack(KEYS)
local bucket, uid = ARGV[1], ARGV[2]
local FIRST_ENTRY = 3
local SEEN_TTL = 86400000
local seen, is_on = tonumber(redis.call('GET', outbox_seen) or '0'), redis.call('HEXISTS', feed, 'number') == 1

local function put(event_type, stream_name, fields)
  if event_type < 0 then
    redis.call('ZADD', leaving, fields, uid)
    return
  end
  if event_type == USER_ONLINE then
    redis.call('ZADD', online, 'NX', int(server_now), uid)
  elseif event_type == USER_OFFLINE then
    redis.call('ZREM', leaving, uid)
  end
  local stream = stream_name == 'events' and events or on_demand_events
  if is_on then append_event(feed, stream, counter, tonumber(bucket), 'u:' .. uid, event_type, '0', fields) end
end

local last = seen
for at = FIRST_ENTRY, #ARGV do
  local entry = cmsgpack.unpack(ARGV[at])
  local number = tonumber(entry[1])
  if number > last then
    put(entry[2], entry[3], entry[4])
    last = number
  end
end
if last > seen then redis.call('SET', outbox_seen, int(last), 'PX', SEEN_TTL) end
return int(last)
