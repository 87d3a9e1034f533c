-- Turns the event feed of a bucket on or off. When the feed is turned on again, its numbering
-- continues.
--
-- KEYS   feed   of the bucket
-- ARGV   is_on  1 for on, 0 for off
local feed = KEYS[1]
local is_on = ARGV[1]
local from, to = 'stopped', 'number'
if is_on == '0' then from, to = to, from end
if redis.call('HEXISTS', feed, to) == 1 then return end
redis.call('HSET', feed, to, redis.call('HGET', feed, from) or '0')
redis.call('HDEL', feed, from)
