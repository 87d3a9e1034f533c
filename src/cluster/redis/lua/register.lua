-- Enters a session of a user, takes out those that it ends [decisions: Kick rule] and tells their nodes; the same session again ends nobody for being itself.
-- KEYS: the user's sessions HASH sessionId → entry
-- ARGV: sessionId, life, flag, level, deviceId, tokenTag, uid, the user's topic
-- Reply: {since, sessionId, entry, … of the ended}
local mine = { flag = tonumber(ARGV[3]), level = tonumber(ARGV[4]), device = ARGV[5] }
local time = redis.call('TIME')
local since = tonumber(time[1]) * 1000000 + tonumber(time[2])
local ended, told = {}, {}
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  local old = read_entry(all[at + 1])
  if old.since >= since then since = old.since + 1 end
  if all[at] ~= ARGV[1] and collide(mine, old) then
    ended[#ended + 1] = all[at]
    ended[#ended + 1] = all[at + 1]
    told[all[at]] = old
    redis.call('HDEL', KEYS[1], all[at])
  end
end
mine.since = since
for id, old in pairs(told) do tell_ended(ARGV[8], ARGV[7], id, old, mine) end
redis.call('HSET', KEYS[1], ARGV[1], write_entry(ARGV[2], since, ARGV[3], ARGV[4], ARGV[5], ARGV[6]))
return { int(since), unpack(ended) }
