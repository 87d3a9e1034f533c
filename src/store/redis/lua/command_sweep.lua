-- Reads a page of a bucket's pending copies, for one node at a time. Other nodes get an empty page
-- until the first node deletes `commandSweep`, or for a minute after its last page with entries.
--
-- KEYS   1  commands (pending copies of the bucket)
--        2  commandSweep (Unix ms until which a node sweeps them)
-- ARGV   1  now
--        2  message id below which all copies have expired; older entries are removed
--        3  first id, or '(' and the last id of the previous page
--        4  last id
--        5  maximum number of entries
-- Reply  the reply of XRANGE
local LEASE_MS = 60000
local now = tonumber(ARGV[1])
if string.sub(ARGV[3], 1, 1) ~= '(' then
  redis.call('XTRIM', KEYS[1], 'MINID', ARGV[2])
  if now < tonumber(redis.call('GET', KEYS[2]) or 0) then return {} end
end
local page = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
if page[1] then redis.call('SET', KEYS[2], int(now + LEASE_MS), 'PX', LEASE_MS) end
return page
