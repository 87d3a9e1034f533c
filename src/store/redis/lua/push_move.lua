-- Moves a bucket's push cursor, up to which push decisions have been made, and writes the events
-- that result from these decisions.
--
-- KEYS   1  push
--        then see `events.lua`
-- ARGV   1  token of the lease
--        2  number of the cursor's position before the move
--        3  id of that position
--        4  number of the position after the move
--        5  id of that position
--        then for each event
--           channel key
--           seq of the message
--           JSON of the fields
--        then see `events.lua`, with an empty key
-- Reply  1 if the cursor was moved, 0 if another lease claimed it or its position has changed
local FIRST_EVENT, EVENT_ARGS, LAST_ARGS = 6, 3, 2
local token, number, id = unpack(redis.call('HMGET', KEYS[1], 'token', 'number', 'id'))
if token ~= ARGV[1] or number ~= ARGV[2] or id ~= ARGV[3] then return 0 end
local has_feed = is_feed_on()
redis.call('HSET', KEYS[1], 'number', ARGV[4], 'id', ARGV[5])
if not has_feed then return 1 end
for at = FIRST_EVENT, #ARGV - LAST_ARGS, EVENT_ARGS do
  append_event(FEED, EVENTS, EVENT_IDS, EVENT_BUCKET, ARGV[at], MESSAGE_UNREACHED, ARGV[at + 1], ARGV[at + 2])
end
return 1
