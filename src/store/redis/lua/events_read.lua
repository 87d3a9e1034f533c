-- Reads the entries of a bucket's feed. Read-only.
--
-- ARGV   first  number of the first event
--        limit  maximum number of entries from each key
-- Reply  the entries of each key
local events, on_demand_events = KEYS[1], KEYS[2]
local first, limit = ARGV[1], ARGV[2]
local from = first .. '-0'
return { redis.call('XRANGE', events, from, '+', 'COUNT', limit), redis.call('XRANGE', on_demand_events, from, '+', 'COUNT', limit) }
