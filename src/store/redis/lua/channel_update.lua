-- Changes the bits of a channel's record.
--
-- KEYS   head, then see `events.lua`
-- ARGV   bits to set, bits to clear, then see `events.lua`
-- Reply  new bits of the record, -1 if the channel does not exist
local head = KEYS[1]
local set_bits, cleared_bits = ARGV[1], ARGV[2]
local old_bits = record_bits(head)
if old_bits == NO_RECORD then return NO_RECORD end
local bits = bit.bor(bit.band(old_bits, bit.bnot(tonumber(cleared_bits))), tonumber(set_bits))
if bits == old_bits then return bits end
local has_feed = is_feed_on()
write_record(head, bits)
if has_feed then emit_channel(old_bits, bits) end
return bits
