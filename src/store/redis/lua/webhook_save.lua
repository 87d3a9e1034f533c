-- Changes the stored texts of an endpoint, unless another owner has acquired its lease.
--
-- KEYS   1  lease
--        2  webhookState
--        3  webhookParked
-- ARGV   1  token of the lease, '' if the lease does not matter
--        2  number of fields of webhookState to change
--        then a field and its text for each change, first those of webhookState. The text is '' if the
--        field is removed
-- Reply  1 if the texts were changed, otherwise 0
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
local first = tonumber(ARGV[2])
for at = 3, #ARGV, 2 do
  local key = at < 3 + 2 * first and KEYS[2] or KEYS[3]
  if ARGV[at + 1] == '' then
    redis.call('HDEL', key, ARGV[at])
  else
    redis.call('HSET', key, ARGV[at], ARGV[at + 1])
  end
end
return 1
