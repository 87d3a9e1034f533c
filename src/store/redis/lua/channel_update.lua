-- Changes fields of a channel's record.
-- KEYS  info
-- ARGV  fields and values; `disband` only ever 1
-- Reply bits of the record as it is now, -1: there is none
if record_bits(KEYS[1]) == NO_RECORD then return NO_RECORD end
if #ARGV > 0 then redis.call('HSET', KEYS[1], unpack(ARGV)) end
return record_bits(KEYS[1])
