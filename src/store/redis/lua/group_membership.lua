-- Membership of a user in a group. Placed in front of scripts, after `channel_record.lua`. `bucket`
-- is the key prefix of the group's bucket.

-- Returns true if the user is a member. No user is a member of a disbanded group.
local function is_in_group(bucket, key, uid)
  local is_member = redis.call('SISMEMBER', bucket .. 'permanent:' .. key, uid) == 1 or redis.call('SISMEMBER', bucket .. 'temporary:' .. key, uid) == 1
  return is_member and is_open(bucket .. 'head:' .. key)
end
