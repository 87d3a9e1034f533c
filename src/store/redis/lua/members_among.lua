-- Finds the members (of either kind) among the given users. Read-only.
--
-- KEYS   see `members.lua`
-- ARGV   1  JSON list of uids
-- Reply  positions (from 1) of the members
return positions(cjson.decode(ARGV[1]), 1, are_members)
