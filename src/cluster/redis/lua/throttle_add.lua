-- Counts a failed attempt in the time window of its key. The first failure starts the window.
--
-- KEYS   counter  HASH {count, ends, window}
-- ARGV   now      Unix milliseconds
--        window   length of the time window, milliseconds
--        margin   time for which the counter is stored after its window, milliseconds
-- Reply  count    integer, failures in the window including this one
--        ends     integer, end of the window in Unix milliseconds
local counter = KEYS[1]
local now, window, margin = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local ends = tonumber(redis.call('HGET', counter, 'ends') or '0')
-- If a window ends more than `margin` later than a new window would, it began before the clock was
-- set back.
if ends > now and ends <= now + window + margin then
  redis.call('HSET', counter, 'window', int(window))
  return {redis.call('HINCRBY', counter, 'count', 1), ends}
end
redis.call('HSET', counter, 'count', 1, 'ends', int(now + window), 'window', int(window))
redis.call('PEXPIRE', counter, int(window + margin))
return {1, now + window}
