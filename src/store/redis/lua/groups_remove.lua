-- Removes groups that the user is not a member of from the user's group index. An entry is removed
-- only if it is old enough and has not changed since it was read. A recent entry may have been
-- added for a script that is about to make the user a member.
--
-- KEYS   1  groups
-- ARGV   1  minimum age in seconds
--        then for each group: id, and the time of its entry as it was read
-- Reply  number of removed entries
local max_entered, removed = redis.call('TIME')[1] - ARGV[1], 0
for at = 2, #ARGV, 2 do
  local entered = redis.call('HGET', KEYS[1], ARGV[at])
  if entered == ARGV[at + 1] and tonumber(entered) < max_entered then removed = removed + redis.call('HDEL', KEYS[1], ARGV[at]) end
end
return removed
