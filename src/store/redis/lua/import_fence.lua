-- In front of every step of a move that writes: a process that was frozen, and whose right to move has passed to another one meanwhile, writes nothing.
-- ARGV  (taken off its end) until when it has the right: Unix ms of this server's clock
-- Reply nil: it is too late, nothing was written
local may_write_until = tonumber(table.remove(ARGV))
local time = redis.call('TIME')
if tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) >= may_write_until then return false end
