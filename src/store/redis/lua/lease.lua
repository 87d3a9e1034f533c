-- Acquires, renews or releases the lease of a task.
--
-- ARGV   owner           owner of the lease
--        ttl             time until the lease expires (ms), 0 to release it
--        released_token  token of the lease to release, '' to acquire or renew it
-- Reply  token of the lease, 0 if another owner holds it, or if the lease to release has ended
local lease = KEYS[1]
local owner, ttl, released_token = ARGV[1], ARGV[2], ARGV[3]
if released_token ~= '' then
  local holder, token = unpack(redis.call('HMGET', lease, 'owner', 'token'))
  if holder ~= owner or token ~= released_token then return 0 end
end
return acquire_lease(lease, owner, tonumber(ttl))
