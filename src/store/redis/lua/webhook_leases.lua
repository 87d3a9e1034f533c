-- Acquires or renews the leases of endpoints. A removed endpoint gets no lease, so that no key
-- of the endpoint remains.
--
-- KEYS   webhooks, then the lease of each endpoint
-- ARGV   owner
--        ttl    time until the leases expire (ms)
--        then the id of each endpoint
-- Reply  token of each lease, 0 if another owner holds it, or if the endpoint was removed
local webhooks = KEYS[1]
local owner, ttl = ARGV[1], ARGV[2]
local FIRST_LEASE = 2 -- index in KEYS
local FIRST_ID = 3
local tokens = {}
for at = 0, #KEYS - FIRST_LEASE do
  local lease, id = KEYS[FIRST_LEASE + at], ARGV[FIRST_ID + at]
  local exists = redis.call('HEXISTS', webhooks, id) == 1
  tokens[#tokens + 1] = exists and acquire_lease(lease, owner, tonumber(ttl)) or 0
end
return tokens
