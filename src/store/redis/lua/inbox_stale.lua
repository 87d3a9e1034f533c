-- Commands that were begun long ago and not finished: whoever did it is gone. KEYS: cmdat, cmd. ARGV: begun until (Unix milliseconds), how many at
-- most. Reply: {id, the command as noted, ...}, oldest first.
local found = {}
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do
  local noted = redis.call('HGET', KEYS[2], id)
  if noted then
    found[#found + 1] = id
    found[#found + 1] = noted
  else
    redis.call('ZREM', KEYS[1], id)
  end
end
return found
