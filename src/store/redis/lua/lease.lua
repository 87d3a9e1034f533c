-- Acquires, renews or releases the lease of a task.
--
-- KEYS   1  lease
-- ARGV   1  owner
--        2  time until the lease expires (ms)
--        3  token of the lease to release, '' to acquire or renew it
-- Reply  token of the lease, 0 if another owner holds it, or if the lease to release has ended
if ARGV[3] ~= '' then
  local holder, token = unpack(redis.call('HMGET', KEYS[1], 'owner', 'token'))
  if holder ~= ARGV[1] or token ~= ARGV[3] then return 0 end
end
return acquire_lease(KEYS[1], ARGV[1], tonumber(ARGV[2]))
