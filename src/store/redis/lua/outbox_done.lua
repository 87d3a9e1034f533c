-- Removes from a user's outbox the entries that were moved to the feed.
--
-- ARGV   last_number  number of the last entry that was moved
--        max_entries  maximum number of entries to remove
local outbox = KEYS[1]
local last_number, max_entries = ARGV[1], ARGV[2]
local entries, count = redis.call('LRANGE', outbox, 0, tonumber(max_entries) - 1), 0
for _, entry in ipairs(entries) do
  if tonumber(cmsgpack.unpack(entry)[1]) > tonumber(last_number) then break end
  count = count + 1
end
if count > 0 then redis.call('LTRIM', outbox, count, -1) end
