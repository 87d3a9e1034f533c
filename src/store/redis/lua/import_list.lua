-- Makes a list what it is to be, however often the step is repeated.
-- KEYS  the list
-- ARGV  its values
-- Reply number of values
redis.call('DEL', KEYS[1])
for _, value in ipairs(ARGV) do redis.call('RPUSH', KEYS[1], value) end
return #ARGV
