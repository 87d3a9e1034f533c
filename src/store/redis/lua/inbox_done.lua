-- Forgets commands that every recipient has. KEYS: cmdat, cmd. ARGV: their ids. Reply: how many there were.
redis.call('ZREM', KEYS[1], unpack(ARGV))
return redis.call('HDEL', KEYS[2], unpack(ARGV))
