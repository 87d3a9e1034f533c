-- Reads the state that a session needs to join. Read-only. On a Redis Cluster, each call reads the
-- part in one slot, and only one of the calls reads the user's part.
--
-- KEYS   sessions of the user, only if the user's part is read
--        then the key prefix of each bucket that contains some of the groups
--        then, only if there are positions, the key prefix of the first position's bucket. On a
--        Redis Cluster, all positions of a call are in this bucket
-- ARGV   uid
--        session_id     '' if the user's part is not read
--        known_groups   SHA-1 of the groups in the index that the caller knows (see
--                       `groups_index.lua`)
--        now            Unix ms
--        max_copies     maximum number of copies from the inbox
--        max_bytes      maximum payload bytes of these copies
--        group_buckets  number of buckets that contain some of the groups
--        then, for each of these buckets, the number of its groups and the channel key of each
--        positions      MessagePack array, with four items for each position: the key prefix of its
--                       bucket, the channel key, the last seq and the highest message id of the
--                       reader. '' if there are no positions
-- Reply  1  indexes (from 1) of the groups of which the user is not a member
--        2  indexes (from 1) of the groups that have an active stream and the user as a member
--        3  newest seq and last common seq (see `resume_seqs.lua`) of each position
--        then, only if the user's part is read
--        4  1 if the session has an entry, else 0
--        5  all ids in the group index, nil if the caller knows them
--        6  copies (see `inbox_copies.lua`)
--        7  channel keys in the index of personal streams, which may have ended
local sessions = KEYS[1]
local uid, session_id, known_groups, now, max_copies, max_bytes, group_buckets = unpack(ARGV, 1, 7)
local FIRST_BUCKET = 8
local key, at = 1, FIRST_BUCKET
local others, active, seqs, before = {}, {}, {}, 0
local reply = { others, active, seqs }
if session_id ~= '' then
  local user = string.sub(sessions, 1, -1 - #'sessions')
  key = 2
  reply[4] = redis.call('HEXISTS', sessions, session_id)
  reply[5] = unknown_index(user .. 'groups', known_groups)
  reply[6] = inbox_copies(user .. 'inbox', tonumber(now), '1', tonumber(max_copies), tonumber(max_bytes))
  reply[7] = redis.call('SMEMBERS', user .. 'streams')
end
for _ = 1, tonumber(group_buckets) do
  local bucket, count = KEYS[key], tonumber(ARGV[at])
  -- Most buckets have no active stream. For their groups, this check saves one call per group.
  local has_streams = redis.call('EXISTS', bucket .. 'activeStreams') == 1
  for n = 1, count do
    local group = ARGV[at + n]
    if not is_in_group(bucket, group, uid) then
      others[#others + 1] = before + n
    elseif has_streams and redis.call('EXISTS', bucket .. 'openStreams:' .. group) == 1 then
      active[#active + 1] = before + n
    end
  end
  key, before, at = key + 1, before + count, at + count + 1
end
local positions = ARGV[at] == '' and {} or cmsgpack.unpack(ARGV[at])
for n = 1, #positions, 4 do
  local bucket, channel, last_seq, last_id = unpack(positions, n, n + 3)
  local head_seq, common_seq = resume_seqs(bucket .. 'head:' .. channel, bucket .. 'log:' .. channel, last_seq, last_id)
  seqs[#seqs + 1] = head_seq
  seqs[#seqs + 1] = common_seq
end
return reply
