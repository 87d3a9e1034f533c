-- Makes sure that a session which a node serves is in the directory under the node's life. It never ends one that logged in later.
-- KEYS: the user's sessions HASH sessionId → entry; the user's newest logins HASH flag → login
-- ARGV: sessionId, life, flag, level, deviceId, tokenTag, uid, the user's topic, since, order (as its registration gave them), ms that a login is kept
-- Reply: {'there'}; {'renewed'}: it was there under an earlier life; {'entered'}: entered anew; {'refused', reason}: a later one, or `end`, ended it
local mine = {
  flag = tonumber(ARGV[3]), level = tonumber(ARGV[4]), device = ARGV[5], since = tonumber(ARGV[9]), order = tonumber(ARGV[10]),
}
local entry = write_entry(ARGV[2], mine.since, ARGV[3], ARGV[4], ARGV[5], ARGV[6], mine.order)
local here = redis.call('HGET', KEYS[1], ARGV[1])
if here then
  if read_entry(here).life == ARGV[2] then return { 'there' } end
  redis.call('HSET', KEYS[1], ARGV[1], entry)
  return { 'renewed' }
end
local newest = mine.level == 1 and read_login(KEYS[2], ARGV[3]) or nil
if newest and newest.order >= mine.order then
  if newest.order > mine.order and not same_device(mine, newest) then return { 'refused', 'kicked' } end
  if newest.ended ~= '' then return { 'refused', newest.ended } end
  if newest.since > mine.since then return { 'refused', 'replaced' } end
end
local ended = {}
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  local other = read_entry(all[at + 1])
  if collide(mine, other) or continued(mine, other) then
    local reason = reason_of(other, mine)
    local isLater = other.since > mine.since
    if reason == 'kicked' then isLater = other.order > mine.order end
    if isLater then return { 'refused', reason } end
    ended[all[at]] = other
  end
end
for id, other in pairs(ended) do
  redis.call('HDEL', KEYS[1], id)
  tell_ended(ARGV[8], ARGV[7], id, mine, other)
end
if mine.level == 1 then
  mine.label, mine.ended, mine.past = newest and newest.label or '', '', newest and newest.past or {}
  write_login(KEYS[2], ARGV[3], mine, ARGV[11])
end
redis.call('HSET', KEYS[1], ARGV[1], entry)
return { 'entered' }
