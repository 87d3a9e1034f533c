-- Reads users' group indexes, and the newest inboxSeq in each user's inbox. Read-only.
--
-- KEYS   groups and inbox of each user
-- Reply  for each user
--          1  group ids in the index
--          2  newest inboxSeq, 0 if the inbox is empty
local states = {}
for at = 1, #KEYS, 2 do
  local groups, inbox = KEYS[at], KEYS[at + 1]
  local newest = redis.call('XREVRANGE', inbox, '+', '-', 'COUNT', 1)[1]
  states[#states + 1] = { redis.call('HKEYS', groups), newest and tonumber(string.match(newest[1], '^%d+')) or 0 }
end
return states
