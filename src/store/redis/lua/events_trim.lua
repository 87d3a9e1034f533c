-- Removes the oldest entries of a bucket's feed: entries whose events are all old and no longer
-- needed, and entries beyond a maximum number. Each call removes a limited number of entries.
--
-- KEYS   1  events or onDemandEvents of the bucket
--        2  onDemandEvents of the bucket, possibly the same key as the first
--        3  feed of the bucket
-- ARGV   1  Unix ms: entries whose newest event is older are removed
--        2  number of the last event that is no longer needed, -1 if no event is needed
--        3  maximum number of entries to keep
-- Reply  number of removed entries, and 1 if the call must be repeated, else 0

local MAX_ENTRIES = 500
local before, needed_after, kept = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local excess, removed, next_entry, last = redis.call('XLEN', KEYS[1]) - kept, 0, nil, nil
local entries = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', MAX_ENTRIES + 1)
for at, entry in ipairs(entries) do
  next_entry = entry[1]
  local number, id = string.match(entry[1], '^(%d+)-(%d+)$')
  local is_old = message_ms(tonumber(id)) < before and (needed_after < 0 or tonumber(number) <= needed_after)
  if at > MAX_ENTRIES or not (is_old or at <= excess) then break end
  removed, next_entry, last = at, nil, number
end
if removed == 0 then return { 0, 0 } end
if next_entry then
  redis.call('XTRIM', KEYS[1], 'MINID', next_entry)
else
  redis.call('XTRIM', KEYS[1], 'MAXLEN', 0)
end
if KEYS[1] ~= KEYS[2] then
  redis.call('XTRIM', KEYS[2], 'MINID', int(tonumber(last) + 1) .. '-0')
  redis.call('HSET', KEYS[3], 'trimmed', last)
end
return { removed, removed == MAX_ENTRIES and 1 or 0 }
