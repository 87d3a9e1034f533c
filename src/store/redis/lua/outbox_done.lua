-- Removes entries of a user's outbox that were moved to the feed.
--
-- KEYS   1  outbox
-- ARGV   1  number of the last entry that was moved
--        2  maximum number of entries to remove
local entries, count = redis.call('LRANGE', KEYS[1], 0, tonumber(ARGV[2]) - 1), 0
for _, entry in ipairs(entries) do
  if tonumber(cmsgpack.unpack(entry)[1]) > tonumber(ARGV[1]) then break end
  count = count + 1
end
if count > 0 then redis.call('LTRIM', KEYS[1], count, -1) end
