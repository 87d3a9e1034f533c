-- Counts a failed login in the time window of its key. The first failure starts the window.
--
-- KEYS   counter  HASH {count, ends}
-- ARGV   now      Unix milliseconds
--        window   length of the time window, milliseconds
--        margin   time for which the counter is stored after its window, milliseconds
-- Reply  count    integer, failures in the window including this one
--        ends     integer, end of the window in Unix milliseconds
local ends = tonumber(redis.call('HGET', KEYS[1], 'ends') or '0')
local now, window = tonumber(ARGV[1]), tonumber(ARGV[2])
if ends > now then return {redis.call('HINCRBY', KEYS[1], 'count', 1), ends} end
redis.call('HSET', KEYS[1], 'count', 1, 'ends', int(now + window))
redis.call('PEXPIRE', KEYS[1], int(window + tonumber(ARGV[3])))
return {1, now + window}
