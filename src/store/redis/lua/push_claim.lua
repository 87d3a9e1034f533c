-- Claims a bucket's push cursor for a lease. Push decisions have been made up to this cursor. A new
-- cursor starts after the newest event.
--
-- ARGV   lease_token  token of the lease
-- Reply  number and id of the cursor's position, nil if a lease with a higher token claimed it
local push, feed = KEYS[1], KEYS[2]
local lease_token = ARGV[1]
local claimed, number, id = unpack(redis.call('HMGET', push, 'token', 'number', 'id'))
if claimed and tonumber(claimed) > tonumber(lease_token) then return false end
if not number then
  local newest = redis.call('HMGET', feed, 'number', 'stopped', 'id')
  number, id = newest[1] or newest[2] or '0', newest[3] or '0'
end
redis.call('HSET', push, 'token', lease_token, 'number', number, 'id', id)
return { number, id }
