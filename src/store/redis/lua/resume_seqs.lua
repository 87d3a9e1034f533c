-- Finds the position at which a reader of a channel continues. Ids grow with seqs, so an entry with
-- an id above the reader's highest id is not in the reader's history. Placed in front of scripts.
--
-- Returns two values: the newest seq, and the last seq that the reader has in common with the log.
-- This is the highest seq up to `last_seq` through which no entry has an id above `last_id`. If
-- `last_id` is 0, ids are not compared, and the second value is `last_seq`.
local function resume_seqs(head, log, last_seq, last_id)
  local head_seq = tonumber(redis.call('HGET', head, 'seq') or '0')
  local function is_shared(through)
    local newest = redis.call('XREVRANGE', log, int(through), '-', 'COUNT', 1)[1]
    return not newest or log_entry(newest).id <= last_id
  end
  if last_id == 0 or last_seq == 0 or is_shared(last_seq) then return head_seq, last_seq end
  local low, high = 0, last_seq - 1
  while low < high do
    local middle = high - math.floor((high - low) / 2)
    if is_shared(middle) then low = middle else high = middle - 1 end
  end
  return head_seq, low
end
