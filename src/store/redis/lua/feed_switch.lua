-- Turns the event feed of a bucket on or off. Turning it on again continues its numbers.
--
-- KEYS   1  feed of the bucket
-- ARGV   1  1 for on, 0 for off
local from, to = 'stopped', 'number'
if ARGV[1] == '0' then from, to = to, from end
if redis.call('HEXISTS', KEYS[1], to) == 1 then return end
redis.call('HSET', KEYS[1], to, redis.call('HGET', KEYS[1], from) or '0')
redis.call('HDEL', KEYS[1], from)
