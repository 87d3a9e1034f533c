-- Adds delivery attempts to the list of an endpoint, unless the endpoint was removed.
--
-- KEYS   1     webhooks
--        2     webhookAttempts
-- ARGV   1     id
--        2     number of the newest attempts to keep
--        3...  attempts, the newest one last
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return end
redis.call('LPUSH', KEYS[2], unpack(ARGV, 3))
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[2]) - 1)
