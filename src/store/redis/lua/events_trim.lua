-- Removes the oldest entries of a bucket's feed: entries whose events are all older than `before`
-- and no longer needed, and entries beyond `max_entries`. Each call removes at most MAX_REMOVED
-- entries of `events`.
--
-- KEYS   events            events or onDemandEvents of the bucket
--        on_demand_events  of the bucket. If `events` is a different key, the entries up to the
--                          last removed number are removed from this key too
--        feed              of the bucket
-- ARGV   before            Unix ms: entries whose newest event is older are removed
--        needed_after      number of the last event that is no longer needed, -1 if no event is
--                          needed
--        max_entries       maximum number of entries to keep
-- Reply  number of removed entries, and 1 if the call must be repeated, else 0
local events, on_demand_events, feed = KEYS[1], KEYS[2], KEYS[3]
local before, needed_after, max_entries = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local MAX_REMOVED = 500
local excess, removed, next_entry, last = redis.call('XLEN', events) - max_entries, 0, nil, nil
local entries = redis.call('XRANGE', events, '-', '+', 'COUNT', MAX_REMOVED + 1)
for at, entry in ipairs(entries) do
  next_entry = entry[1]
  local number, id = string.match(entry[1], '^(%d+)-(%d+)$')
  local is_old = message_ms(tonumber(id)) < before and (needed_after < 0 or tonumber(number) <= needed_after)
  if at > MAX_REMOVED or not (is_old or at <= excess) then break end
  removed, next_entry, last = at, nil, number
end
if removed == 0 then return { 0, 0 } end
if next_entry then
  redis.call('XTRIM', events, 'MINID', next_entry)
else
  redis.call('XTRIM', events, 'MAXLEN', 0)
end
if events ~= on_demand_events then
  redis.call('XTRIM', on_demand_events, 'MINID', int(tonumber(last) + 1) .. '-0')
  redis.call('HSET', feed, 'trimmed', last)
end
return { removed, removed == MAX_REMOVED and 1 or 0 }
