-- Reads all members, unless their number would make the script delay other calls. Read-only.
--
-- KEYS   see `members.lua`
-- ARGV   1  maximum number of members; a member of both kinds counts twice
-- Reply  the uids of the members without duplicates, nil if there are more members
if redis.call('SCARD', KIND) + redis.call('SCARD', OTHER_KIND) > tonumber(ARGV[1]) then return false end
return redis.call('SUNION', KIND, OTHER_KIND)
