-- Reads the facts that decide whether a user may send to a channel. Read-only.
--
-- KEYS   head, permanent, temporary, denylist and allowlist of the channel
--        other_head   head of a second record in the same slot, absent if none is read
-- ARGV   uid          user to check, '' if only the record is read
--        any_members  1 to also report whether the channel has any members, else absent
-- Reply  1  -1 if there is no record, else the bits of the record plus
--             32 if the uid is a member
--             64 if the uid is a member, or if `any_members` is present and the channel has any
--                members
--        2  sum of
--             1 if the uid is on the denylist
--             2 if the allowlist is not empty
--             4 if the uid is on the allowlist
--        3  bits of the second record, or -1; only with `other_head`
local head, permanent, temporary, denylist, allowlist, other_head = unpack(KEYS)
local uid, any_members = ARGV[1], ARGV[2]
local MEMBER, HAS_MEMBERS = 32, 64
local IS_DENIED, IS_ALLOWED = 1, 4
local fields = redis.call('HMGET', head, 'info', 'lists')
local bits, lists = bits_of(fields[1]), 0
if bits ~= NO_RECORD then
  if redis.call('SISMEMBER', permanent, uid) == 1 or redis.call('SISMEMBER', temporary, uid) == 1 then
    bits = bits + MEMBER + HAS_MEMBERS
  elseif any_members and redis.call('EXISTS', permanent, temporary) > 0 then
    bits = bits + HAS_MEMBERS
  end
end
if fields[2] then
  if redis.call('SISMEMBER', denylist, uid) == 1 then lists = lists + IS_DENIED end
  if bit.band(tonumber(fields[2]), HAS_ALLOWLIST) ~= 0 then
    lists = lists + HAS_ALLOWLIST + redis.call('SISMEMBER', allowlist, uid) * IS_ALLOWED
  end
end
if not other_head then return { bits, lists } end
return { bits, lists, record_bits(other_head) }
