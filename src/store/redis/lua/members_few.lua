-- Reads all members if there are at most `max_members`. A longer list would delay other calls.
-- Read-only.
--
-- KEYS   see `members.lua`
-- ARGV   max_members  maximum number of members; a member of both kinds counts twice
-- Reply  the uids of the members without duplicates, nil if there are more members
local max_members = ARGV[1]
if redis.call('SCARD', KIND) + redis.call('SCARD', OTHER_KIND) > tonumber(max_members) then return false end
return redis.call('SUNION', KIND, OTHER_KIND)
