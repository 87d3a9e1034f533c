-- Removes an endpoint and all data that is stored for it.
--
-- KEYS   1     webhooks
--        2...  keys of the endpoint
-- ARGV   1     id
-- Reply  1 if it existed, otherwise 0
for at = 2, #KEYS do redis.call('DEL', KEYS[at]) end
return redis.call('HDEL', KEYS[1], ARGV[1])
