-- Reads the notes of a bucket's commands, for one node at a time: others find none until the node
-- that began is done, or a minute behind its last page.
-- KEYS  1 commands (the bucket's notes), 2 commandSweep (until when a node goes through them, Unix
--   ms)
-- ARGV  1 now, 2 message id below which notes have ended, 3 first id, or '(' and the last one of
--   the page before, 4 last id, 5 notes at most
-- Reply as of XRANGE
local LEASE_MS = 60000
local now = tonumber(ARGV[1])
if string.sub(ARGV[3], 1, 1) ~= '(' then
  redis.call('XTRIM', KEYS[1], 'MINID', ARGV[2])
  if now < tonumber(redis.call('GET', KEYS[2]) or 0) then return {} end
end
local page = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
if page[1] then redis.call('SET', KEYS[2], int(now + LEASE_MS), 'PX', LEASE_MS) end
return page
