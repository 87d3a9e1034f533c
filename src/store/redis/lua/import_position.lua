-- Sets a user's imported read position in a channel.
--
-- ARGV   uid
--        read_seq     seq through which the user has read
--        deleted_seq  seq through which the user has deleted
-- Reply  1 if the position was set, 0 if the same position was already stored
local head, positions = KEYS[1], KEYS[2]
local uid, read_seq, deleted_seq = ARGV[1], ARGV[2], ARGV[3]
local head_seq = tonumber(redis.call('HGET', head, 'seq') or '0')
local read, deleted = math.min(tonumber(read_seq), head_seq), math.min(tonumber(deleted_seq), head_seq)
local before = redis.call('HGET', positions, uid)
-- The third field is the channel's head seq at the user's last change. If the user's newest message
-- has a higher seq, `marks_of` counts all messages through that message as read. With 0, this
-- applies to every user who has sent a message.
local position = table.concat({ int(read), int(deleted), '0', '0' }, ' ')
if before == position then return 0 end
redis.call('HSET', positions, uid, position)
return 1
