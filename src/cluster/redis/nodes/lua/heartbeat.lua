-- Records the heartbeat of an incarnation (a node until it leaves or is declared dead), declares
-- silent incarnations dead, and returns the live incarnations. All times come from Redis' clock.
-- Time during which no incarnation could send a heartbeat, because Redis was unreachable, does not
-- count as silence.
--
-- KEYS   beats        ZSET: incarnation -> time of its last heartbeat, milliseconds
--        nodes        HASH: incarnation -> description of its node
--        settings     HASH: incarnation -> JSON of its node's settings
--        clock        HASH: tick     time of the newest heartbeat of any incarnation, milliseconds
--                           resumed  time of the first heartbeat after more than half of `silence`
--                                    without any heartbeat, or after Redis' clock was set back
-- ARGV   incarnation   name of the incarnation: its node id, a colon and 12 hex digits
--        node          node id of the incarnation
--        description   JSON, see NodeInfo
--        silence       milliseconds without a heartbeat after which an incarnation is dead
--        mode          'enter' for a new incarnation, 'beat' for a known one
--        own_settings  JSON, only for 'enter'
-- Reply  {'ok', {incarnation, description, ...}, now, {incarnation, settings, ...}}
--                                                      the live incarnations and Redis' time; the
--                                                      settings only for 'enter'
--        {'dead'}                                      'beat': the incarnation is not live
--        {'taken'}                                     'enter': another incarnation with this node
--                                                      id is live
local beats, nodes, settings, clock = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local incarnation, node, description, silence = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local mode, own_settings = ARGV[5], ARGV[6]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local tick = tonumber(redis.call('HGET', clock, 'tick') or now)
local resumed = tonumber(redis.call('HGET', clock, 'resumed') or 0)
if now < tick or now - tick > silence / 2 then
  resumed = now
  redis.call('HSET', clock, 'resumed', int(now))
  -- A heartbeat with a future time exists only if Redis' clock was set back.
  for _, future in ipairs(redis.call('ZRANGEBYSCORE', beats, '(' .. int(now), '+inf')) do
    redis.call('ZADD', beats, int(now), future)
  end
end
redis.call('HSET', clock, 'tick', int(now))

if now - resumed > silence then
  for _, silent in ipairs(redis.call('ZRANGEBYSCORE', beats, '-inf', '(' .. int(now - silence))) do
    redis.call('ZREM', beats, silent)
    redis.call('HDEL', nodes, silent)
  end
end

if mode == 'enter' then
  for _, other in ipairs(redis.call('ZRANGE', beats, 0, -1)) do
    if other ~= incarnation and string.match(other, '^(.*):[^:]*$') == node then return { 'taken' } end
  end
  -- Dead incarnations were removed from `beats` and `nodes`, but not from `settings`.
  for _, past in ipairs(redis.call('HKEYS', settings)) do
    if redis.call('HEXISTS', nodes, past) == 0 then redis.call('HDEL', settings, past) end
  end
  redis.call('HSET', settings, incarnation, own_settings)
elseif not redis.call('ZSCORE', beats, incarnation) then
  return { 'dead' }
end
redis.call('ZADD', beats, int(now), incarnation)
redis.call('HSET', nodes, incarnation, description)
return { 'ok', redis.call('HGETALL', nodes), now, mode == 'enter' and redis.call('HGETALL', settings) or {} }
