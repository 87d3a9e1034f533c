-- Acquires, renews or releases the lease of a task.
--
-- KEYS   1  lease
-- ARGV   1  owner
--        2  time until the lease expires (ms)
--        3  token of the lease to release, '' to acquire or renew it
-- Reply  token of the lease, 0 if another owner holds it, or if the lease to release has ended
local owner, token, ends = unpack(redis.call('HMGET', KEYS[1], 'owner', 'token', 'ends'))
if ARGV[3] ~= '' and (owner ~= ARGV[1] or token ~= ARGV[3]) then return 0 end
token = tonumber(token or '0')
if owner ~= ARGV[1] then
  if owner and tonumber(ends) > server_now then return 0 end
  -- The time makes the token greater than those that a restart of Redis has lost.
  token = math.max(token + 1, server_now)
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', int(token), 'ends', int(server_now + tonumber(ARGV[2])))
return token
