-- Stores imported messages of one channel under their seqs, which must be in ascending order.
-- Publishes nothing. The dedupe keys are not declared. They are in the slot of the head.
--
-- KEYS   head, log, labels, due, expiry and redDots (see `ports.ts`)
--        counter         message id counter
-- ARGV   now             Unix ms
--        bucket          of the counter, -1 on a single server
--        head_seq        newest seq of the channel as the caller read it, 0 if there was no message
--        key             channel key
--        due             Unix ms at which the channel must be swept, or +inf
--        is_apart        1 if the channel's users are in other slots, else 0
--        then for each message (at most 64)
--          seq
--          time          Unix ms
--          uid           sender
--          record
--          label         id in the source
--          expires       Unix ms, '' if the message does not expire
--          dedupe_key    '' if retries of the message are not recognised
--          payload_hash  see `store/payload-hash.ts`, '' without a dedupe key
--          dedupe_ttl    time to live of the dedupe record, ms
-- Reply  1 if the messages were stored, 0 if nothing was stored, because `head_seq` is not the
--        newest seq
local head, log, labels, due_channels, expiry, red_dots, counter = unpack(KEYS)
local now, bucket, head_seq, key, due, is_apart = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local FIRST_MESSAGE = 7
local MESSAGE_ARGS = 9
local fields = redis.call('HMGET', head, 'seq', 'red')
if (fields[1] or '0') ~= head_seq then return 0 end
local red = tonumber(fields[2] or '0')
local count = (#ARGV - FIRST_MESSAGE + 1) / MESSAGE_ARGS
local id = reserve_ids(counter, bucket, id_ms(bucket, now), count)
local seq, time, uid, record, label, expires, dedupe_key, payload_hash, dedupe_ttl, entry_id
for at = FIRST_MESSAGE, #ARGV, MESSAGE_ARGS do
  seq, time, uid, record, label, expires, dedupe_key, payload_hash, dedupe_ttl = unpack(ARGV, at, at + MESSAGE_ARGS - 1)
  if at > FIRST_MESSAGE then id = next_id(id, bucket, now) end
  entry_id = seq .. '-' .. int(id)
  if expires == '' then
    red = red + 1
    redis.call('XADD', log, entry_id, 'c', int(red), 'r', record, 't', time)
  else
    redis.call('XADD', log, entry_id, 'c', int(red), 'r', record, 'x', expires, 't', time)
    redis.call('ZADD', expiry, expires, entry_id)
    redis.call('ZADD', red_dots, seq, seq .. ':' .. expires)
  end
  redis.call('ZADD', labels, seq, label)
  redis.call('HSET', head, '@' .. uid, seq)
  if dedupe_key ~= '' then redis.call('SET', dedupe_key, time .. ' ' .. entry_id .. '#' .. payload_hash, 'PX', dedupe_ttl) end
end
redis.call('HSET', head, 'seq', seq, 'pub', seq, 'red', int(red), 'last', entry_id, 'imported', seq, 'importedAt', time)
if is_apart == '1' then redis.call('HSET', head, 'newest', int(id)) end
redis.call('HDEL', head, 'bare')
redis.call('ZADD', due_channels, 'LT', due, key)
return 1
