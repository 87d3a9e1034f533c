-- Reads the seqs at which users became members of a group. Read-only.
--
-- KEYS   see `members.lua`
-- ARGV   uids_json  JSON list of uids
-- Reply  for each uid, the seq of the group's newest message when the user became a member, -1 if
--        the user is not a member, or if the group does not exist or is disbanded
local uids_json = ARGV[1]
local uids, since = cjson.decode(uids_json), {}
local is_group_open = is_open(HEAD)
in_pieces(uids, function(piece)
  local memberships = are_members(piece)
  local seqs = redis.call('HMGET', JOIN_SEQS, unpack(piece))
  for at in ipairs(piece) do
    since[#since + 1] = is_group_open and memberships[at] == 1 and tonumber(seqs[at] or '0') or -1
  end
end)
return since
