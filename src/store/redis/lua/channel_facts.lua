-- What deciding on a send needs to know of one channel, and of a second record in the same slot.
-- Reads only.
-- KEYS  head, permanent, temporary, denylist, allowlist; [head of another record]
-- ARGV  uid; [1: also whether there are members at all]
-- Reply { bits of the record (-1: none) + 32 when uid is a member + 64 when there are members; 1
--   when uid is on the denylist + 2 when the allowlist is not empty + 4 when uid is on it; [bits of
--   the other record] }
local MEMBER, ANY = 32, 64
local DENIED, ALLOWED = 1, 4
local uid = ARGV[1]
local head = redis.call('HMGET', KEYS[1], 'info', 'lists')
local bits, lists = bits_of(head[1]), 0
if bits ~= NO_RECORD then
  if redis.call('SISMEMBER', KEYS[2], uid) == 1 or redis.call('SISMEMBER', KEYS[3], uid) == 1 then
    bits = bits + MEMBER + ANY
  elseif ARGV[2] and redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then
    bits = bits + ANY
  end
end
if head[2] then
  if redis.call('SISMEMBER', KEYS[4], uid) == 1 then lists = lists + DENIED end
  if bit.band(tonumber(head[2]), HAS_ALLOWLIST) ~= 0 then
    lists = lists + HAS_ALLOWLIST + redis.call('SISMEMBER', KEYS[5], uid) * ALLOWED
  end
end
if not KEYS[6] then return { bits, lists } end
return { bits, lists, record_bits(KEYS[6]) }
