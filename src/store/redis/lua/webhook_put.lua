-- Stores the settings of an endpoint if the stored settings have the expected version.
--
-- KEYS   1  webhooks
-- ARGV   1  id
--        2  settings
--        3  version that is expected, 0 for a new endpoint
--        4  maximum number of endpoints
-- Reply  'done', 'changed' (the stored version is not the expected one), or 'full'
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local version = stored and string.match(stored, '^%d+ (%d+) ') or '0'
if version ~= ARGV[3] then return 'changed' end
if not stored and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then return 'full' end
redis.call('HSET', KEYS[1], ARGV[1], '1 ' .. int(tonumber(version) + 1) .. ' ' .. ARGV[2])
return 'done'
