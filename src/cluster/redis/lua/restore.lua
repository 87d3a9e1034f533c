-- Makes sure that a session which a node serves is in the directory under the node's life. It never ends one that logged in later.
-- KEYS: the user's sessions HASH sessionId → entry
-- ARGV: sessionId, life, flag, level, deviceId, tokenTag, uid, the user's topic, since (as its registration gave it)
-- Reply: {0}: it was there; {1}: it was there under an earlier life; {2, sessionId, entry, …}: entered anew, with those older ones that it ends;
--   {3, sessionId, entry}: a later one stands in its place, it stays out
local mine = { flag = tonumber(ARGV[3]), level = tonumber(ARGV[4]), device = ARGV[5], since = tonumber(ARGV[9]) }
local entry = write_entry(ARGV[2], mine.since, ARGV[3], ARGV[4], ARGV[5], ARGV[6])
local here = redis.call('HGET', KEYS[1], ARGV[1])
if here then
  if read_entry(here).life == ARGV[2] then return { 0 } end
  redis.call('HSET', KEYS[1], ARGV[1], entry)
  return { 1 }
end
local ended = {}
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  local other = read_entry(all[at + 1])
  if collide(mine, other) then
    if other.since > mine.since or (other.since == mine.since and all[at] > ARGV[1]) then
      return { 3, all[at], all[at + 1] }
    end
    ended[#ended + 1] = all[at]
    ended[#ended + 1] = all[at + 1]
  end
end
for at = 1, #ended, 2 do
  redis.call('HDEL', KEYS[1], ended[at])
  tell_ended(ARGV[8], ARGV[7], ended[at], read_entry(ended[at + 1]), mine)
end
redis.call('HSET', KEYS[1], ARGV[1], entry)
return { 2, unpack(ended) }
