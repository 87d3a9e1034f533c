-- Reads the read positions of members of a channel. Read-only.
--
-- KEYS   1  head
--        2  positions
--        3  joinSeqs
-- ARGV   uids, at most 1,000
-- Reply  for each uid, the seq through which the user has read
local own_fields, seqs = {}, {}
for at, uid in ipairs(ARGV) do own_fields[at] = '@' .. uid end
local head = redis.call('HMGET', KEYS[1], 'seq', 'imported')
local own_seqs = redis.call('HMGET', KEYS[1], unpack(own_fields))
local positions = redis.call('HMGET', KEYS[2], unpack(ARGV))
local join_seqs = redis.call('HMGET', KEYS[3], unpack(ARGV))
local head_seq, imported_seq = tonumber(head[1] or '0'), tonumber(head[2] or '0')
for at in ipairs(ARGV) do
  local own_seq = tonumber(own_seqs[at] or '0')
  if positions[at] then
    local read = marks_of(positions[at], own_seq)
    seqs[at] = read
  else
    seqs[at] = math.min(head_seq, math.max(tonumber(join_seqs[at] or '0'), own_seq, imported_seq))
  end
end
return seqs
