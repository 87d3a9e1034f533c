-- Changes the bits of a channel's record.
--
-- KEYS   1  head
--        then see `events.lua`
-- ARGV   1  bits to set
--        2  bits to clear
--        then see `events.lua`
-- Reply  new bits of the record, -1 if the channel does not exist
local old_bits = record_bits(KEYS[1])
if old_bits == NO_RECORD then return NO_RECORD end
local bits = bit.bor(bit.band(old_bits, bit.bnot(tonumber(ARGV[2]))), tonumber(ARGV[1]))
if bits == old_bits then return bits end
local has_feed = is_feed_on()
write_record(KEYS[1], bits)
if has_feed then emit_channel(old_bits, bits) end
return bits
