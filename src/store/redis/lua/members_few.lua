-- All members, where they are not so many that others would wait. Reads only.
-- KEYS  as of members.lua
-- ARGV  how many at most
-- Reply the members, each once; nil: there are more
if redis.call('SCARD', KIND) + redis.call('SCARD', OTHER) > tonumber(ARGV[1]) then return false end
return redis.call('SUNION', KIND, OTHER)
