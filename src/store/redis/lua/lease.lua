-- Acquires, renews or releases the lease of a task.
--
-- KEYS   1  lease
-- ARGV   1  owner
--        2  time until the lease expires (ms; 0 releases it)
-- Reply  token of the lease, 0 if another owner holds it
local owner, token, ends = unpack(redis.call('HMGET', KEYS[1], 'owner', 'token', 'ends'))
token = tonumber(token or '0')
if owner ~= ARGV[1] then
  if ARGV[2] == '0' or (owner and tonumber(ends) > server_now) then return 0 end
  token = token + 1
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', int(token), 'ends', int(server_now + tonumber(ARGV[2])))
return token
