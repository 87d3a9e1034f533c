-- Which of some users are members of either kind. Reads only.
-- KEYS  as of members.lua
-- ARGV  JSON list of uids
-- Reply positions (from 1) of the members
return positions(cjson.decode(ARGV[1]), 1, in_either)
