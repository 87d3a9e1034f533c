-- Reads a page of a bucket's pending copies, for one node at a time. Other nodes get an empty page
-- until the first node deletes `commandSweep`, or for a minute after its last page with entries.
--
-- KEYS   commands       pending copies of the bucket
--        command_sweep  Unix ms until which a node sweeps them
-- ARGV   now            Unix ms
--        ended_id       message id below which all copies have expired; older entries are removed
--        from           first id, or '(' and the last id of the previous page
--        to             last id
--        max_entries    maximum number of entries in the page
-- Reply  the reply of XRANGE
local commands, command_sweep = KEYS[1], KEYS[2]
local now, ended_id, from, to, max_entries = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local LEASE_MS = 60000
if string.sub(from, 1, 1) ~= '(' then
  redis.call('XTRIM', commands, 'MINID', ended_id)
  if now < tonumber(redis.call('GET', command_sweep) or 0) then return {} end
end
local page = redis.call('XRANGE', commands, from, to, 'COUNT', max_entries)
if page[1] then redis.call('SET', command_sweep, int(now + LEASE_MS), 'PX', LEASE_MS) end
return page
