-- Raises a counter of message ids: no id up to the given one is given by it any more.
-- KEYS  id
-- ARGV  a message id
-- Reply 1: raised, 0: it was higher
local last = redis.call('GET', KEYS[1])
if last and tonumber(last) >= tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
