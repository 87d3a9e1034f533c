-- Finds the users in ARGV who are members of either kind. Read-only.
--
-- KEYS   see `members.lua`
-- ARGV   uids_json  JSON list of uids
-- Reply  positions (from 1) of the members
local uids_json = ARGV[1]
return positions(cjson.decode(uids_json), 1, are_members)
