-- Changes a channel's record.
-- KEYS  head
-- ARGV  bits to set, bits to take away
-- Reply bits of the record as it is now; -1: no such channel
local before = record_bits(KEYS[1])
if before == NO_RECORD then return NO_RECORD end
local bits = bit.bor(bit.band(before, bit.bnot(tonumber(ARGV[2]))), tonumber(ARGV[1]))
if bits ~= before then write_record(KEYS[1], bits) end
return bits
