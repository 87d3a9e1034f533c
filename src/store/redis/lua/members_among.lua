-- Which of some users are members of either kind. Reads only.
-- KEYS  perm, temp
-- ARGV  JSON list of uids
-- Reply positions (from 1) of the members
return positions(cjson.decode(ARGV[1]), 1, function(piece) return in_either(KEYS[1], KEYS[2], piece) end)
