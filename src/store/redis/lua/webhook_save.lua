-- Changes the stored texts of an endpoint, unless the endpoint was removed or another owner has
-- acquired its lease.
--
-- KEYS   1  webhooks
--        2  lease
--        3  webhookState
--        4  webhookParked
-- ARGV   1  id
--        2  token of the lease, '' if the lease does not matter
--        3  number of fields of webhookState to change
--        then for each change the field and its text, '' to remove the field; the changes of
--        webhookState come first
-- Reply  1 if the texts were changed, otherwise 0
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if ARGV[2] ~= '' and redis.call('HGET', KEYS[2], 'token') ~= ARGV[2] then return 0 end
local first = tonumber(ARGV[3])
for at = 4, #ARGV, 2 do
  local key = at < 4 + 2 * first and KEYS[3] or KEYS[4]
  if ARGV[at + 1] == '' then
    redis.call('HDEL', key, ARGV[at])
  else
    redis.call('HSET', key, ARGV[at], ARGV[at + 1])
  end
end
return 1
