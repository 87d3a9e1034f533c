-- A life (one process from start to death) says that it lives and reads who else does. Who fell silent is declared dead here, for good: it comes
-- back as another life. Time is Redis' own; while no life at all could say anything (Redis was away) nobody dies of it.
-- KEYS: beats ZSET life → ms of its last sign; nodes HASH life → record; dead HASH life → ms from which its sweep is anybody's to take;
--   clock HASH: tick (ms of the newest sign of anybody), resumed (ms at which signs came again after a silence of all)
-- ARGV: life, its node id, its record, ms of silence that are death, `enter` (a new life) or `beat`, ms a taken sweep is held
-- Reply: {'ok', {life, record, …} that live, {life, …} dead but not swept, {life, …} that the caller is to sweep, ms of Redis' time}
--   or {'dead'}: the life is not among the living (of `enter`: not any more; its answer was lost); or {'taken', record}: of `enter`, a life of the same node id lives
local beats, nodes, dead, clock = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local life, node, record, mode = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local silence, lease = tonumber(ARGV[4]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local tick = tonumber(redis.call('HGET', clock, 'tick') or now)
local resumed = tonumber(redis.call('HGET', clock, 'resumed') or 0)
if now < tick or now - tick > silence / 2 then
  resumed = now
  redis.call('HSET', clock, 'resumed', int(now))
  for _, one in ipairs(redis.call('ZRANGEBYSCORE', beats, '(' .. int(now), '+inf')) do
    redis.call('ZADD', beats, int(now), one) -- the clock was set back
  end
end
redis.call('HSET', clock, 'tick', int(now))

if now - resumed > silence then
  for _, one in ipairs(redis.call('ZRANGEBYSCORE', beats, '-inf', '(' .. int(now - silence))) do
    redis.call('ZREM', beats, one)
    redis.call('HDEL', nodes, one)
    redis.call('HSET', dead, one, 0)
  end
end

if mode == 'enter' then
  if redis.call('HEXISTS', dead, life) == 1 then return { 'dead' } end
  for _, one in ipairs(redis.call('ZRANGE', beats, 0, -1)) do
    if one ~= life and string.match(one, '^(.*):[^:]*$') == node then
      return { 'taken', redis.call('HGET', nodes, one) or '' }
    end
  end
elseif not redis.call('ZSCORE', beats, life) then
  return { 'dead' }
end
redis.call('ZADD', beats, int(now), life)
redis.call('HSET', nodes, life, record)

local unswept, mine = {}, {}
local all = redis.call('HGETALL', dead)
for at = 1, #all, 2 do
  unswept[#unswept + 1] = all[at]
  if tonumber(all[at + 1]) <= now then
    mine[#mine + 1] = all[at]
    redis.call('HSET', dead, all[at], int(now + lease))
  end
end
return { 'ok', redis.call('HGETALL', nodes), unswept, mine, now }
