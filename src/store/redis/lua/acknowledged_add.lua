-- Adds users who have acknowledged a message.
--
-- ARGV   ttl_ms  time for which the key is kept
--        then uids
local acknowledged = KEYS[1]
local ttl_ms = ARGV[1]
local FIRST_UID = 2
redis.call('SADD', acknowledged, unpack(ARGV, FIRST_UID))
redis.call('PEXPIRE', acknowledged, ttl_ms)
