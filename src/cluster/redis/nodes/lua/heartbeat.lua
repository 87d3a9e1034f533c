-- An incarnation (one process from start to death) says that it lives and reads which others do.
-- One that fell silent is declared dead here: its node comes back as another incarnation. Time is
-- Redis' own; while no incarnation at all could say anything (Redis was away) none dies of it.
-- KEYS: beats ZSET incarnation → ms of its last heartbeat; nodes HASH incarnation → node
--   description;
--   clock HASH: tick (ms of the newest heartbeat of any), resumed (ms at which heartbeats came
--     again after a silence of all)
-- ARGV: incarnation, its node id, its description, ms of silence that are death, `enter` (a new
--   incarnation) or `beat`
-- Reply: {'ok', {incarnation, description, …} that live, ms of Redis' time} or {'dead'}: the
--   incarnation is not among the living;
--   or {'taken'}: of `enter`, another incarnation of the same node id lives
local beats, nodes, clock = KEYS[1], KEYS[2], KEYS[3]
local incarnation, node, silence, mode = ARGV[1], ARGV[2], tonumber(ARGV[4]), ARGV[5]
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
  end
end

if mode == 'enter' then
  for _, one in ipairs(redis.call('ZRANGE', beats, 0, -1)) do
    if one ~= incarnation and string.match(one, '^(.*):[^:]*$') == node then return { 'taken' } end
  end
elseif not redis.call('ZSCORE', beats, incarnation) then
  return { 'dead' }
end
redis.call('ZADD', beats, int(now), incarnation)
redis.call('HSET', nodes, incarnation, ARGV[3])
return { 'ok', redis.call('HGETALL', nodes), now }
