-- Reads the read positions of channel members. Read-only.
--
-- ARGV   uids, at most 1,000
-- Reply  for each uid, the seq through which the user has read
local head, positions, join_seqs = KEYS[1], KEYS[2], KEYS[3]
local own_fields, seqs = {}, {}
for at, uid in ipairs(ARGV) do own_fields[at] = '@' .. uid end
local fields = redis.call('HMGET', head, 'seq', 'imported')
local own_seqs = redis.call('HMGET', head, unpack(own_fields))
local user_positions = redis.call('HMGET', positions, unpack(ARGV))
local user_join_seqs = redis.call('HMGET', join_seqs, unpack(ARGV))
local head_seq, imported_seq = tonumber(fields[1] or '0'), tonumber(fields[2] or '0')
for at in ipairs(ARGV) do
  local own_seq = tonumber(own_seqs[at] or '0')
  if user_positions[at] then
    local read = marks_of(user_positions[at], own_seq)
    seqs[at] = read
  else
    seqs[at] = math.min(head_seq, math.max(tonumber(user_join_seqs[at] or '0'), own_seq, imported_seq))
  end
end
return seqs
