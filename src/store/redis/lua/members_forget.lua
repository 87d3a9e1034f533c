-- Takes uids from `replaced`, and removes the data of users who are no longer members.
--
-- KEYS   see `members.lua`
-- ARGV   1  topic of the group
--        2  id of the group
--        3  maximum number of uids to process
-- Reply  number of uids that remain in `replaced`
forget_members(non_members(redis.call('SPOP', REPLACED, ARGV[3])))
return redis.call('SCARD', REPLACED)
