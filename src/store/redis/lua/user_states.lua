-- The index of the groups of some users, and their newest commands. Reads only.
-- KEYS  groups, doubt, inbox of each user
-- Reply of each { the index, its doubts (`user-groups.ts`), the newest inboxSeq; 0: none }
local states = {}
for at = 1, #KEYS, 3 do
  local newest = redis.call('XREVRANGE', KEYS[at + 2], '+', '-', 'COUNT', 1)[1]
  states[#states + 1] = {
    redis.call('SMEMBERS', KEYS[at]), redis.call('SMEMBERS', KEYS[at + 1]),
    newest and tonumber(string.match(newest[1], '^%d+')) or 0,
  }
end
return states
