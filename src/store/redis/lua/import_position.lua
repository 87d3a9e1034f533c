-- Sets the imported read position of a user in a channel.
--
-- KEYS   1  head
--        2  positions
-- ARGV   1  uid
--        2  seq through which the user has read
--        3  seq through which the user has deleted
-- Reply  1  the position was set
--        0  it was the same before
local head_seq = tonumber(redis.call('HGET', KEYS[1], 'seq') or '0')
local read, deleted = math.min(tonumber(ARGV[2]), head_seq), math.min(tonumber(ARGV[3]), head_seq)
local before = redis.call('HGET', KEYS[2], ARGV[1])
-- The third field is 0, which is below the seq of every message that the user sent, so that these
-- messages count as read.
local position = table.concat({ int(read), int(deleted), '0', '0' }, ' ')
if before == position then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], position)
return 1
