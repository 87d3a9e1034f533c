-- Since when some users are members of a group. Reads only.
-- KEYS  as of members.lua
-- ARGV  JSON list of uids
-- Reply for each the group's head when it became a member; -1: it is not a member, or there is no
--   such group, or it is disbanded
local uids, since = cjson.decode(ARGV[1]), {}
local is_there = is_open(HEAD)
in_pieces(uids, function(piece)
  local answers = in_either(piece)
  local seqs = redis.call('HMGET', JOIN_SEQS, unpack(piece))
  for at in ipairs(piece) do
    since[#since + 1] = is_there and answers[at] == 1 and tonumber(seqs[at] or '0') or -1
  end
end)
return since
