-- Takes a piece of the lists of a group that were replaced: removed members among it leave nothing behind. The key ends with its last piece.
-- KEYS  replaced, perm, temp, join, pos, head
-- ARGV  how many uids
-- Reply how many are left
local piece = redis.call('SPOP', KEYS[1], ARGV[1])
left({ join = KEYS[4], pos = KEYS[5], head = KEYS[6] }, in_neither(KEYS[2], KEYS[3], piece))
return redis.call('SCARD', KEYS[1])
