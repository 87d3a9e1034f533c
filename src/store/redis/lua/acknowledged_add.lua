-- Adds users who have acknowledged a message.
--
-- KEYS   1     acknowledged
-- ARGV   1     time for which the key is kept (ms)
--        2...  uids
redis.call('SADD', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
