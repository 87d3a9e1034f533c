-- Where a reader of a channel goes on: the newest seq, and through which seq the reader's history
-- is the log's. Ids grow with seqs, so the reader has no entry with a greater id.
-- Reads only.
-- KEYS  1 head, 2 log
-- ARGV  1 the reader's last seq, 2 the greatest message id it has through there; 0: any
-- Reply { the newest seq, the greatest seq, ARGV[1] at most, through which no entry has a greater
--   id }
local last_seq, last_id = tonumber(ARGV[1]), tonumber(ARGV[2])
local head_seq = tonumber(redis.call('HGET', KEYS[1], 'seq') or '0')

local function is_shared(through)
  local newest = redis.call('XREVRANGE', KEYS[2], int(through), '-', 'COUNT', 1)[1]
  return not newest or log_entry(newest).id <= last_id
end

if last_id == 0 or last_seq == 0 or is_shared(last_seq) then return { head_seq, last_seq } end
local low, high = 0, last_seq - 1
while low < high do
  local middle = high - math.floor((high - low) / 2)
  if is_shared(middle) then low = middle else high = middle - 1 end
end
return { head_seq, low }
