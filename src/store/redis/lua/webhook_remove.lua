-- Removes an endpoint and all data that is stored for it.
--
-- KEYS   webhooks, then the keys of the endpoint
-- ARGV   id  of the endpoint
-- Reply  1 if the endpoint existed, otherwise 0
local webhooks = KEYS[1]
local id = ARGV[1]
local FIRST_KEY = 2
for at = FIRST_KEY, #KEYS do redis.call('DEL', KEYS[at]) end
return redis.call('HDEL', webhooks, id)
