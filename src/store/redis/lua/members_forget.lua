-- Removes uids from `replaced`, and removes the data of these users unless they are still members.
--
-- KEYS   see `members.lua`
-- ARGV   see `members.lua`, then
--        max_uids  maximum number of uids to process
-- Reply  number of uids that remain in `replaced`
local max_uids = ARGV[3]
forget_members(non_members(redis.call('SPOP', REPLACED, max_uids)))
return redis.call('SCARD', REPLACED)
