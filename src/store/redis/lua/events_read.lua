-- Reads the entries of a bucket's feed. Read-only.
--
-- KEYS   1  events
--        2  onDemandEvents
-- ARGV   1  number of the first event
--        2  maximum number of entries of each key
-- Reply  the entries of each key
local from = ARGV[1] .. '-0'
return { redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', ARGV[2]), redis.call('XRANGE', KEYS[2], from, '+', 'COUNT', ARGV[2]) }
