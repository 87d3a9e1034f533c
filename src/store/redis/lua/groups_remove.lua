-- Removes from a user's group index the groups of which the user is not a member. An entry is
-- removed only if it is older than `min_age` and has not changed since it was read. A recent entry
-- may have been added for a script that is about to make the user a member.
--
-- ARGV   min_age  minimum age in seconds
--        then for each group: id, and the time of its entry as it was read
-- Reply  number of removed entries
local groups = KEYS[1]
local min_age = ARGV[1]
local FIRST_GROUP = 2
local max_entered, removed = redis.call('TIME')[1] - min_age, 0
for at = FIRST_GROUP, #ARGV, 2 do
  local group_id, read_entered = ARGV[at], ARGV[at + 1]
  local entered = redis.call('HGET', groups, group_id)
  if entered == read_entered and tonumber(entered) < max_entered then removed = removed + redis.call('HDEL', groups, group_id) end
end
return removed
