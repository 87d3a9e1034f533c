-- Moves a bucket's push cursor, up to which push decisions have been made, and writes the events
-- that result from these decisions.
--
-- KEYS   push, then see `events.lua`
-- ARGV   lease_token  token of the lease
--        old_number   number of the cursor's position before the move
--        old_id       id of that position
--        new_number   number of the position after the move
--        new_id       id of that position
--        then for each event
--          key        channel key
--          seq        of the message
--          fields     JSON
--        then see `events.lua`, with an empty key
-- Reply  1 if the cursor was moved, 0 if another lease claimed it or its position has changed
local push = KEYS[1]
local lease_token, old_number, old_id, new_number, new_id = unpack(ARGV, 1, 5)
local FIRST_EVENT, EVENT_ARGS, LAST_ARGS = 6, 3, 2
local token, number, id = unpack(redis.call('HMGET', push, 'token', 'number', 'id'))
if token ~= lease_token or number ~= old_number or id ~= old_id then return 0 end
local has_feed = is_feed_on()
redis.call('HSET', push, 'number', new_number, 'id', new_id)
if not has_feed then return 1 end
for at = FIRST_EVENT, #ARGV - LAST_ARGS, EVENT_ARGS do
  local key, seq, fields = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  append_event(FEED, EVENTS, EVENT_IDS, EVENT_BUCKET, key, MESSAGE_UNREACHED, seq, fields)
end
return 1
