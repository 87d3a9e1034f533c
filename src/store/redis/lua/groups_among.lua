-- Finds, among some groups, those of which a user is a member. Disbanded groups are left out.
-- Read-only.
--
-- KEYS   head, permanent, temporary of each group
-- ARGV   1  uid
-- Reply  positions (from 1) of the user's groups among the groups in KEYS
local positions = {}
for at = 1, #KEYS, 3 do
  if redis.call('SISMEMBER', KEYS[at + 1], ARGV[1]) == 1 or redis.call('SISMEMBER', KEYS[at + 2], ARGV[1]) == 1 then
    if is_open(KEYS[at]) then positions[#positions + 1] = (at + 2) / 3 end
  end
end
return positions
