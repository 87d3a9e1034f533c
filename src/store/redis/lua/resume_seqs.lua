-- Finds the position at which a reader of a channel continues: the newest seq, and the last seq
-- through which the reader's history and the log are the same. Ids grow with seqs, so an entry with
-- a higher id than the reader's is not in the reader's history. Read-only.
--
-- KEYS   1  head
--        2  log
-- ARGV   1  last seq of the reader
--        2  highest message id of the reader through that seq, 0 if ids are not compared
-- Reply  1  newest seq
--        2  highest seq, at most ARGV[1], through which no entry has an id above ARGV[2]; ARGV[1]
--           if ids are not compared
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
