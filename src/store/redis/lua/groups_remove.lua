-- Removes groups, of which the user is no member, from the index of its groups: entries that are as
-- they were read, and so old that no script is under way which makes the user a member and for
-- which they were entered.
-- KEYS  groups
-- ARGV  seconds; group id and time of entry, as read, of each
-- Reply how many were removed
local before, removed = redis.call('TIME')[1] - ARGV[1], 0
for at = 2, #ARGV, 2 do
  local entered = redis.call('HGET', KEYS[1], ARGV[at])
  if entered == ARGV[at + 1] and tonumber(entered) < before then removed = removed + redis.call('HDEL', KEYS[1], ARGV[at]) end
end
return removed
