-- Runs one command that writes.
--
-- KEYS  1     the only key of the command
-- ARGV  1     name of the command
--       2...  arguments of the command after its key
-- Reply       the reply of the command
return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))
