-- What a stream holds in some ranges, as one checksum: SHA-1 of each entry's place, fields and values, each behind its length.
-- KEYS  the stream
-- ARGV  first and last seq of each range
-- Reply {number of entries, checksum in hex}
local parts = {}
local function add(text)
  parts[#parts + 1] = struct.pack('>I4', #text)
  parts[#parts + 1] = text
end
local count = 0
for at = 1, #ARGV, 2 do
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[at], ARGV[at + 1])) do
    count = count + 1
    add(entry[1])
    for _, text in ipairs(entry[2]) do add(text) end
  end
end
return { count, redis.sha1hex(table.concat(parts)) }
