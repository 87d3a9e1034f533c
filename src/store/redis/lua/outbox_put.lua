-- Moves the entries of a user's outbox to the feed, each entry exactly once (see `user_feed.lua`).
-- If the feed is off, their events are dropped.
--
-- KEYS   1  feed of the bucket
--        2  events
--        3  onDemandEvents
--        4  counter of message ids
--        5  online
--        6  leaving
--        7  outboxSeen of the user: number of the last entry that was moved, kept for a day
-- ARGV   1  bucket of the counter
--        2  uid
--        then the entries
-- Reply  number of the last entry that was moved
local SEEN_TTL = 86400000
local seen, uid, is_on = tonumber(redis.call('GET', KEYS[7]) or '0'), ARGV[2], redis.call('HEXISTS', KEYS[1], 'number') == 1

local function put(event_type, events, fields)
  if event_type < 0 then
    redis.call('ZADD', KEYS[6], fields, uid)
    return
  end
  if event_type == USER_ONLINE then
    redis.call('ZADD', KEYS[5], 'NX', int(server_now), uid)
  elseif event_type == USER_OFFLINE then
    redis.call('ZREM', KEYS[6], uid)
  end
  local stream = events == 'events' and KEYS[2] or KEYS[3]
  if is_on then append_event(KEYS[1], stream, KEYS[4], tonumber(ARGV[1]), 'u:' .. uid, event_type, '0', fields) end
end

local last = seen
for at = 3, #ARGV do
  local entry = cmsgpack.unpack(ARGV[at])
  local number = tonumber(entry[1])
  if number > last then
    put(entry[2], entry[3], entry[4])
    last = number
  end
end
if last > seen then redis.call('SET', KEYS[7], int(last), 'PX', SEEN_TTL) end
return int(last)
