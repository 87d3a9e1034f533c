-- Changes the stored texts of an endpoint, unless the endpoint was removed or another owner has
-- acquired its lease.
--
-- ARGV   id           of the endpoint
--        token        of the lease, '' to ignore the lease and to change only existing fields
--        state_count  number of fields of `state` to change
--        then for each change the field and its text, '' to remove the field; the changes of
--        `state` come first
-- Reply  1 if the texts were changed, otherwise 0
local webhooks, lease, state, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, token, state_count = ARGV[1], ARGV[2], ARGV[3]
local FIRST_CHANGE = 4
if redis.call('HEXISTS', webhooks, id) == 0 then return 0 end
if token ~= '' and redis.call('HGET', lease, 'token') ~= token then return 0 end
local first_parked = FIRST_CHANGE + 2 * tonumber(state_count)
for at = FIRST_CHANGE, #ARGV, 2 do
  local key = at < first_parked and state or parked
  local field, text = ARGV[at], ARGV[at + 1]
  if text == '' then
    redis.call('HDEL', key, field)
  elseif token ~= '' or redis.call('HEXISTS', key, field) == 1 then
    redis.call('HSET', key, field, text)
  end
end
return 1
