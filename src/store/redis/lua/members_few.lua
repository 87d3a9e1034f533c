-- All members, where they are not so many that others would wait. Reads only.
-- KEYS  perm, temp
-- ARGV  how many at most
-- Reply the members, each once; nil: there are more
if redis.call('SCARD', KEYS[1]) + redis.call('SCARD', KEYS[2]) > tonumber(ARGV[1]) then return false end
return redis.call('SUNION', KEYS[1], KEYS[2])
