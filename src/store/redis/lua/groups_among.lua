-- Which of some groups of one bucket a user is a member of, disbanded ones left out. Reads only.
-- KEYS  head, permanent, temporary of each group
-- ARGV  uid
-- Reply positions (from 1) of the groups
local found = {}
for at = 1, #KEYS, 3 do
  if redis.call('SISMEMBER', KEYS[at + 1], ARGV[1]) == 1 or redis.call('SISMEMBER', KEYS[at + 2], ARGV[1]) == 1 then
    if is_open(KEYS[at]) then found[#found + 1] = (at + 2) / 3 end
  end
end
return found
