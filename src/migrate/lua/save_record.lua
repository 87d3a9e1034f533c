-- Changes what is kept of a move, by the process that has the right to it.
-- KEYS  the record, the lease
-- ARGV  the process's token; "over": other fields stay, "new": they go, "none": nothing is kept; then fields and values in turn
-- Reply 1: changed, 0: another process has the right, or nobody
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
if ARGV[2] ~= 'over' then redis.call('DEL', KEYS[1]) end
for at = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
end
return 1
