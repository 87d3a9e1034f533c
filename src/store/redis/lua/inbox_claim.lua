-- A command gets its id, once per sender and clientMsgNo, and is noted until each of its recipients has a copy.
-- KEYS: dd, id (the bucket's counter), cmdat, cmd (the bucket's unfinished commands). ARGV: now, bucket, for how long clientMsgNo is remembered
-- (milliseconds; 0: it is neither looked up nor remembered), the command as noted ("": nothing to finish).
-- Reply: new: {id}; a retry: {id, seq, pub} of the first command or message.
local now, window = tonumber(ARGV[1]), tonumber(ARGV[3])
if window > 0 then
  local id, seq, pub = remembered(KEYS[1], now, window)
  if id then return { id, seq, pub } end
end
local id = next_id(KEYS[2], tonumber(ARGV[2]), now)
if window > 0 then remember(KEYS[1], { now = now, window = window, id = id, seq = 0, pub = 0 }) end
if ARGV[4] ~= '' then
  redis.call('ZADD', KEYS[3], int(now), int(id))
  redis.call('HSET', KEYS[4], int(id), ARGV[4])
end
return { id }
