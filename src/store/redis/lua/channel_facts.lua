-- Reads the facts that decide whether a user may send to a channel. Read-only.
--
-- KEYS   1  head
--        2  permanent
--        3  temporary
--        4  denylist
--        5  allowlist
--        6  head of a second record in the same slot, optional
-- ARGV   1  uid
--        2  1 to also report whether the channel has any members, else absent
-- Reply  1  -1 if there is no record, else the bits of the record plus
--             32 if the uid is a member
--             64 if the uid is a member, or if ARGV[2] is present and the channel has any members
--        2  sum of
--             1 if the uid is on the denylist
--             2 if the allowlist is not empty
--             4 if the uid is on the allowlist
--        3  bits of the second record, or -1; only with KEYS[6]
local MEMBER, HAS_MEMBERS = 32, 64
local IS_DENIED, IS_ALLOWED = 1, 4
local uid = ARGV[1]
local head = redis.call('HMGET', KEYS[1], 'info', 'lists')
local bits, lists = bits_of(head[1]), 0
if bits ~= NO_RECORD then
  if redis.call('SISMEMBER', KEYS[2], uid) == 1 or redis.call('SISMEMBER', KEYS[3], uid) == 1 then
    bits = bits + MEMBER + HAS_MEMBERS
  elseif ARGV[2] and redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then
    bits = bits + HAS_MEMBERS
  end
end
if head[2] then
  if redis.call('SISMEMBER', KEYS[4], uid) == 1 then lists = lists + IS_DENIED end
  if bit.band(tonumber(head[2]), HAS_ALLOWLIST) ~= 0 then
    lists = lists + HAS_ALLOWLIST + redis.call('SISMEMBER', KEYS[5], uid) * IS_ALLOWED
  end
end
if not KEYS[6] then return { bits, lists } end
return { bits, lists, record_bits(KEYS[6]) }
