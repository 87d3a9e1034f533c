-- Acquires or renews the leases of endpoints. A removed endpoint gets no lease, so that no key
-- of the endpoint remains.
--
-- KEYS   1     webhooks
--        2...  lease of each endpoint
-- ARGV   1     owner
--        2     time until the leases expire (ms)
--        3...  id of each endpoint
-- Reply  token of each lease, 0 if another owner holds it, or if the endpoint was removed
local tokens = {}
for at = 2, #KEYS do
  local exists = redis.call('HEXISTS', KEYS[1], ARGV[at + 1]) == 1
  tokens[at - 1] = exists and acquire_lease(KEYS[at], ARGV[1], tonumber(ARGV[2])) or 0
end
return tokens
