-- Takes groups out of the hint of a user's groups, for as long as one reader looks at them again. What it was doing is kept in `doubt`, so that
-- nothing is lost when it ends in the middle.
-- KEYS  groups, doubt
-- ARGV  the reader's name; group ids
-- Reply number of groups
for at = 2, #ARGV do
  redis.call('SADD', KEYS[2], ARGV[1] .. '\n' .. ARGV[at])
  redis.call('SREM', KEYS[1], ARGV[at])
end
return #ARGV - 1
