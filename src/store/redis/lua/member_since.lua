-- Since when somebody is a member of a group. Reads only.
-- KEYS  info, perm, temp, join
-- ARGV  uid
-- Reply the group's head when the uid became a member; nil: it is none, or there is no such group, or it is disbanded
if not is_open(KEYS[1]) then return false end
local is_member = redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 or redis.call('SISMEMBER', KEYS[3], ARGV[1]) == 1
return is_member and tonumber(redis.call('HGET', KEYS[4], ARGV[1]) or '0')
