-- Counts a failure within its window; the first one begins it.
-- KEYS  the count
-- ARGV  now, length of the window, how much longer than that its storage is kept; all in
--   milliseconds
-- Reply failures of the window, when it ends
local ends = tonumber(redis.call('HGET', KEYS[1], 'ends') or '0')
local now, window = tonumber(ARGV[1]), tonumber(ARGV[2])
if ends > now then return {redis.call('HINCRBY', KEYS[1], 'count', 1), ends} end
redis.call('HSET', KEYS[1], 'count', 1, 'ends', int(now + window))
redis.call('PEXPIRE', KEYS[1], int(window + tonumber(ARGV[3])))
return {1, now + window}
