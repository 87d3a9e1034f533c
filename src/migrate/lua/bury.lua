-- Declares incarnations of nodes dead that gave no sign for long, as a heartbeat of another node would; all of them, or none.
-- KEYS: beats, nodes (see heartbeat.lua)
-- ARGV: incarnation and its last sign, as it was read, in turn
-- Reply: nil, or the incarnation that gave another sign since
for at = 1, #ARGV, 2 do
  local sign = redis.call('ZSCORE', KEYS[1], ARGV[at])
  if sign and tonumber(sign) ~= tonumber(ARGV[at + 1]) then return ARGV[at] end
end
for at = 1, #ARGV, 2 do
  if redis.call('ZREM', KEYS[1], ARGV[at]) == 1 then redis.call('HDEL', KEYS[2], ARGV[at]) end
end
return nil
