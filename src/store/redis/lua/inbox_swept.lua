-- Sets the time when a swept inbox is due next, or removes the inbox from `inboxDue`. Has no effect
-- if the inbox was listed again since the caller read the score.
--
-- ARGV   uid         user of the inbox
--        read_score  score of the inbox as the caller read it
--        next_end    time when the next copy expires, '' if the inbox is empty
local inbox_due = KEYS[1]
local uid, read_score, next_end = ARGV[1], ARGV[2], ARGV[3]
local score = redis.call('ZSCORE', inbox_due, uid)
if not score or tonumber(score) ~= tonumber(read_score) then return end
if next_end == '' then
  redis.call('ZREM', inbox_due, uid)
else
  redis.call('ZADD', inbox_due, next_end, uid)
end
