-- Takes a piece of the lists of a group that were replaced: removed members among it leave nothing
-- behind. The key ends with its last piece.
-- KEYS  as of members.lua
-- ARGV  topic and id of the group, how many uids
-- Reply how many are left
left(in_neither(redis.call('SPOP', REPLACED, ARGV[3])))
return redis.call('SCARD', REPLACED)
