-- Sets the time when a swept inbox is due next, or removes the inbox from `inboxDue`. Has no effect
-- if the inbox was listed again since the caller read the score.
--
-- KEYS   1  inboxDue
-- ARGV   1  uid
--        2  score of the inbox as the caller read it
--        3  time when the next copy expires, '' if the inbox is empty
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[2]) then return end
if ARGV[3] == '' then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
end
