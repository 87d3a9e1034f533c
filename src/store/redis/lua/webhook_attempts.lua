-- Adds delivery attempts to an endpoint's list, unless the endpoint was removed.
--
-- ARGV   id            of the endpoint
--        max_attempts  maximum number of newest attempts that the list keeps
--        then the attempts, the newest one last
local webhooks, attempts = KEYS[1], KEYS[2]
local id, max_attempts = ARGV[1], ARGV[2]
local FIRST_ATTEMPT = 3
if redis.call('HEXISTS', webhooks, id) == 0 then return end
redis.call('LPUSH', attempts, unpack(ARGV, FIRST_ATTEMPT))
redis.call('LTRIM', attempts, 0, tonumber(max_attempts) - 1)
