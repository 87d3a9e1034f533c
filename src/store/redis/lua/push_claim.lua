-- Claims a bucket's push cursor for a lease. Push decisions have been made up to this cursor. A new
-- cursor starts after the newest event.
--
-- KEYS   1  push
--        2  feed
-- ARGV   1  token of the lease
-- Reply  number and id of the cursor's position, nil if a lease with a higher token claimed it
local claimed, number, id = unpack(redis.call('HMGET', KEYS[1], 'token', 'number', 'id'))
if claimed and tonumber(claimed) > tonumber(ARGV[1]) then return false end
if not number then
  local feed = redis.call('HMGET', KEYS[2], 'number', 'stopped', 'id')
  number, id = feed[1] or feed[2] or '0', feed[3] or '0'
end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'number', number, 'id', id)
return { number, id }
