-- Removes what is stored for uids of replaced lists that are no longer members. The key `replaced`
-- is deleted with its last uid.
--
-- KEYS  see `members.lua`
-- ARGV
--   1  topic of the group
--   2  id of the group
--   3  maximum number of uids to process
-- Reply
--   number of uids that remain set aside
forget_members(non_members(redis.call('SPOP', REPLACED, ARGV[3])))
return redis.call('SCARD', REPLACED)
