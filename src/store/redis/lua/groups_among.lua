-- Finds the groups in ARGV that a user is not a member of. Read-only.
--
-- KEYS   key prefix of each bucket that contains some of the groups
-- ARGV   uid
--        then, for each bucket, the number of its groups and the channel key of each
-- Reply  positions (from 1) of these groups among the channel keys in ARGV
local uid = ARGV[1]
local FIRST_BUCKET = 2
local others, before, at = {}, 0, FIRST_BUCKET
for _, bucket in ipairs(KEYS) do
  local count = tonumber(ARGV[at])
  for n = 1, count do
    if not is_in_group(bucket, ARGV[at + n], uid) then others[#others + 1] = before + n end
  end
  before, at = before + count, at + count + 1
end
return others
