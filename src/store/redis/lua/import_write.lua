-- Writes one fact of a move with the command that fits it, however many items it has.
-- KEYS  its key
-- ARGV  HSET, SADD, ZADD or SET; what follows the key ('' or a flag of ZADD); for how long it is kept (ms, 0: for ever); then the items
-- Reply 1
local CHUNK = 1000 -- items of one call, in pairs
local command, flag, keep = ARGV[1], ARGV[2], tonumber(ARGV[3])
for at = 4, #ARGV, CHUNK do
  local last = math.min(at + CHUNK - 1, #ARGV)
  if flag == '' then
    redis.call(command, KEYS[1], unpack(ARGV, at, last))
  else
    redis.call(command, KEYS[1], flag, unpack(ARGV, at, last))
  end
end
if keep > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
