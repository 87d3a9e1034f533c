-- Stores the settings of an endpoint if the stored settings have the expected version.
--
-- ARGV   id                of the endpoint
--        settings          text to store
--        expected_version  0 for a new endpoint
--        max_endpoints     maximum number of endpoints
-- Reply  'done', 'changed' if the stored version is not the expected version, or 'full' if there
--        are already `max_endpoints` endpoints
local webhooks = KEYS[1]
local id, settings, expected_version, max_endpoints = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local stored = redis.call('HGET', webhooks, id)
local version = stored and string.match(stored, '^%d+ (%d+) ') or '0'
if version ~= expected_version then return 'changed' end
if not stored and redis.call('HLEN', webhooks) >= tonumber(max_endpoints) then return 'full' end
redis.call('HSET', webhooks, id, '1 ' .. int(tonumber(version) + 1) .. ' ' .. settings)
return 'done'
