local MAX_STEP = 1000 -- ms by which the clock may be set back without ending a lease

-- Acquires or renews a lease for `ttl` ms. Returns its token, or 0 if another owner holds it.
local function acquire_lease(lease, owner, ttl)
  local holder, token, ends = unpack(redis.call('HMGET', lease, 'owner', 'token', 'ends'))
  token = tonumber(token or '0')
  if holder ~= owner then
    local left = tonumber(ends or '0') - server_now
    -- If the lease ends more than MAX_STEP later than a new lease would, it was acquired before the
    -- clock was set back, and counts as expired.
    if holder and left > 0 and left <= ttl + MAX_STEP then return 0 end
    -- The current time makes the token higher than any token that Redis lost in a restart.
    token = math.max(token + 1, server_now)
  end
  redis.call('HSET', lease, 'owner', owner, 'token', int(token), 'ends', int(server_now + ttl))
  return token
end
