-- Takes a peer out of a user's list, unless a message came since the list was read.
-- KEYS: 1 peers. ARGV: 1 peer, 2 its score as it was read. Reply: 1 taken out, 0 not.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) == tonumber(ARGV[2]) then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0
