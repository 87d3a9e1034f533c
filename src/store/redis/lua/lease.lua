-- Acquires, renews or releases the lease of a task.
--
-- KEYS   1  lease
-- ARGV   1  owner
--        2  time until the lease expires (ms)
--        3  token of the lease to release, '' to acquire or renew it
-- Reply  token of the lease, 0 if another owner holds it, or if the lease to release has ended
local MAX_STEP = 1000 -- ms by which the clock may go back without ending a lease
local owner, token, ends = unpack(redis.call('HMGET', KEYS[1], 'owner', 'token', 'ends'))
if ARGV[3] ~= '' and (owner ~= ARGV[1] or token ~= ARGV[3]) then return 0 end
token = tonumber(token or '0')
if owner ~= ARGV[1] then
  local left = tonumber(ends or '0') - server_now
  -- A lease that ends later than a new one would was acquired before the clock was set back.
  if owner and left > 0 and left <= tonumber(ARGV[2]) + MAX_STEP then return 0 end
  -- The time makes the token higher than tokens that Redis lost in a restart.
  token = math.max(token + 1, server_now)
end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', int(token), 'ends', int(server_now + tonumber(ARGV[2])))
return token
