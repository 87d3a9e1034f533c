-- What deciding on a send needs to know of one channel, and of a second record in the same slot.
-- Reads only.
-- KEYS  head, permanent, temporary; [head of another record]
-- ARGV  uid; [1: also whether there are members at all]
-- Reply { bits of the record (-1: none) + 32 when uid is a member + 64 when there are members;
--   [bits of the other record] }
local MEMBER, ANY = 32, 64
local bits = record_bits(KEYS[1])
if bits ~= NO_RECORD then
  local uid = ARGV[1]
  if redis.call('SISMEMBER', KEYS[2], uid) == 1 or redis.call('SISMEMBER', KEYS[3], uid) == 1 then
    bits = bits + MEMBER + ANY
  elseif ARGV[2] and redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then
    bits = bits + ANY
  end
end
if not KEYS[4] then return { bits } end
return { bits, record_bits(KEYS[4]) }
