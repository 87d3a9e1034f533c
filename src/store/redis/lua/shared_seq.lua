-- Through which seq a reader's history of a channel is the log's: ids grow with seqs, so an entry with a greater id is none that the reader has.
-- KEYS  1 log
-- ARGV  1 the reader's last seq, 2 the greatest message id it has through there
-- Reply the greatest seq, ARGV[1] at most, through which no entry has a greater id
local last_seq, last_id = tonumber(ARGV[1]), tonumber(ARGV[2])

local function is_shared(through)
  local newest = redis.call('XREVRANGE', KEYS[1], int(through) .. '-0', '-', 'COUNT', 1)[1]
  return not newest or tonumber(log_entry(newest).id) <= last_id
end

if is_shared(last_seq) then return last_seq end
local low, high = 0, last_seq - 1
while low < high do
  local middle = high - math.floor((high - low) / 2)
  if is_shared(middle) then low = middle else high = middle - 1 end
end
return low
