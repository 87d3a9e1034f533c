-- Stores imported messages of one channel under their seqs, which must be in ascending order.
-- Publishes nothing. The dedupe keys are not declared. They are in the slot of the head.
--
-- KEYS   1  head
--        2  log
--        3  labels
--        4  due
--        5  expiry
--        6  redDots
--        7  counter of message ids
-- ARGV   1  now              Unix ms
--        2  bucket           of the counter, -1 on a single server
--        3  head seq         newest seq that the caller has read, or 0
--        4  channel key
--        5  due              Unix ms at which the channel must be swept, or +inf
--        6  1 if the channel's users are in other slots, else 0
--        then for each message (at most 64)
--           seq
--           time             Unix ms
--           uid              sender
--           record
--           source id
--           expiry           Unix ms, '' if the message does not expire
--           dedupe key       '' if retries of the message are not recognised
--           payload hash     see `store/payload-hash.ts`, '' without a dedupe key
--           ttl              of the dedupe record, ms
-- Reply  id of the newest message; nil, and nothing is stored, if ARGV[3] is not the newest seq
local FIRST, ARGS = 7, 9
local now, bucket = tonumber(ARGV[1]), tonumber(ARGV[2])
local head = redis.call('HMGET', KEYS[1], 'seq', 'red')
if (head[1] or '0') ~= ARGV[3] then return false end
local red = tonumber(head[2] or '0')
local count = (#ARGV - FIRST + 1) / ARGS
local id = reserve_ids(KEYS[7], bucket, id_ms(bucket, now), count)
local seq, time, entry_id
for at = FIRST, #ARGV, ARGS do
  local uid, record, label, expires, dedupe_key = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  if at > FIRST then id = next_id(id, bucket, now) end
  seq, time = ARGV[at], ARGV[at + 1]
  entry_id = seq .. '-' .. int(id)
  if expires == '' then
    red = red + 1
    redis.call('XADD', KEYS[2], entry_id, 'c', int(red), 'r', record, 't', time)
  else
    redis.call('XADD', KEYS[2], entry_id, 'c', int(red), 'r', record, 'x', expires, 't', time)
    redis.call('ZADD', KEYS[5], expires, entry_id)
    redis.call('ZADD', KEYS[6], seq, seq .. ':' .. expires)
  end
  redis.call('ZADD', KEYS[3], seq, label)
  redis.call('HSET', KEYS[1], '@' .. uid, seq)
  if dedupe_key ~= '' then redis.call('SET', dedupe_key, time .. ' ' .. entry_id .. '#' .. ARGV[at + 7], 'PX', ARGV[at + 8]) end
end
redis.call('HSET', KEYS[1], 'seq', seq, 'pub', seq, 'red', int(red), 'last', entry_id, 'imported', seq, 'importedAt', time)
if ARGV[6] == '1' then redis.call('HSET', KEYS[1], 'newest', int(id)) end
redis.call('HDEL', KEYS[1], 'bare')
redis.call('ZADD', KEYS[4], 'LT', ARGV[5], ARGV[4])
return int(id)
