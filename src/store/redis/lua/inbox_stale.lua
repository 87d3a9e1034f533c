-- Takes commands that were begun long ago and not finished: whoever did it is gone. Who is taken stands behind all others and is stale again later,
-- so that those that cannot be finished keep no other from its turn.
-- KEYS: cmdat, cmd. ARGV: begun or last taken until (Unix milliseconds), now, how many at most, bytes at most (one in any case).
-- Reply: {id, the command as noted, ...}, those that wait longest first.
local found, bytes = {}, 0
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
for _, id in ipairs(ids) do
  local noted = redis.call('HGET', KEYS[2], id)
  if noted then
    bytes = bytes + #noted
    if #found > 0 and bytes > tonumber(ARGV[4]) then break end
    redis.call('ZADD', KEYS[1], ARGV[2], id)
    found[#found + 1] = id
    found[#found + 1] = noted
  else
    redis.call('ZREM', KEYS[1], id)
  end
end
return found
