-- Makes sure that a session which a node serves is in the directory under the node's incarnation, and does not expire. It never ends one that logged
-- in later. Notifies those who watch the user of what it changed.
-- KEYS: the user's sessions HASH sessionId → entry; the user's newest logins HASH flag → login
-- ARGV: sessionId, incarnation, flag, level, deviceId, tokenTag, uid, the user's topic, ms that an entry is kept, ms that a login is kept,
--   the user's presence topic, the LOOSE frame of a presence event, since, order (as its registration gave them)
-- Reply: {'there'}; {'renewed'}: it was there under an earlier incarnation; {'entered'}: entered anew; {'refused', reason}: a later one, or `end`,
--   ended it
local mine = {
  incarnation = ARGV[2], flag = tonumber(ARGV[3]), level = tonumber(ARGV[4]), device = ARGV[5], tag = ARGV[6],
  since = tonumber(ARGV[13]), order = tonumber(ARGV[14]),
}
local here = redis.call('HGET', KEYS[1], ARGV[1])
if here then
  local old = read_entry(here)
  local is_mine = old.incarnation == mine.incarnation
  local left = old.expires - tonumber(redis.call('TIME')[1]) * 1000
  if is_mine and left > tonumber(ARGV[9]) / 2 then return { 'there' } end
  read_entries(KEYS[1], ARGV[1])
  write_entry(KEYS[1], ARGV[1], mine, ARGV[9])
  if is_mine then return { 'there' } end
  redis.call('SPUBLISH', ARGV[11], ARGV[12])
  return { 'renewed' }
end
local newest = mine.level == 1 and read_login(KEYS[2], ARGV[3]) or nil
if newest and newest.order >= mine.order then
  if newest.order > mine.order and not same_device(mine, newest) then return { 'refused', 'kicked' } end
  if newest.ended ~= '' then return { 'refused', newest.ended } end
  if newest.since > mine.since then return { 'refused', 'replaced' } end
end
local ended = {}
for _, other in ipairs(read_entries(KEYS[1], ARGV[1])) do
  if collide(mine, other) or continued(mine, other) then
    local reason = reason_of(other, mine)
    local isLater = other.since > mine.since
    if reason == 'kicked' then isLater = other.order > mine.order end
    if isLater then return { 'refused', reason } end
    ended[#ended + 1] = other
  end
end
for _, other in ipairs(ended) do remove_ended(KEYS[1], ARGV[8], ARGV[7], mine, other) end
if mine.level == 1 then
  mine.label, mine.ended, mine.past = newest and newest.label or '', '', newest and newest.past or {}
  write_login(KEYS[2], ARGV[3], mine, ARGV[10])
end
write_entry(KEYS[1], ARGV[1], mine, ARGV[9])
redis.call('SPUBLISH', ARGV[11], ARGV[12])
return { 'entered' }
