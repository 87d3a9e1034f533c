-- Takes out what a dead life left of a user's sessions.
-- KEYS: the user's sessions HASH sessionId → entry
-- ARGV: life
-- Reply: how many there were
local swept = 0
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  if read_entry(all[at + 1]).life == ARGV[1] then
    swept = swept + redis.call('HDEL', KEYS[1], all[at])
  end
end
return swept
