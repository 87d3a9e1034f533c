-- Ends what groups_doubt began: groups the user is in after all go back into the hint, and the doubts end.
-- KEYS  groups, doubt
-- ARGV  number of groups; their ids; the doubts to end
-- Reply number of doubts that were there
local count = tonumber(ARGV[1])
for at = 2, 1 + count do redis.call('SADD', KEYS[1], ARGV[at]) end
local ended = 0
for at = 2 + count, #ARGV do ended = ended + redis.call('SREM', KEYS[2], ARGV[at]) end
return ended
