-- One command that writes.
-- KEYS  1 its only key
-- ARGV  1 the command; the rest is what follows the key
-- Reply the command's
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
