-- The index of the groups of some users, and their newest commands. Reads only.
-- KEYS  groups, inbox of each user
-- Reply of each { the groups in the index, the newest inboxSeq; 0: none }
local states = {}
for at = 1, #KEYS, 2 do
  local newest = redis.call('XREVRANGE', KEYS[at + 1], '+', '-', 'COUNT', 1)[1]
  states[#states + 1] = { redis.call('HKEYS', KEYS[at]), newest and tonumber(string.match(newest[1], '^%d+')) or 0 }
end
return states
