-- Removes what nobody can see any more from a channel's log, oldest first, and notes when to look
-- again.
-- KEYS  1 head, 2 log, 3 expiry, 4 redDots, 5 due
-- ARGV  1 now, 2 retention (ms, 0: for ever), 3 channel key, 4 how many at most of either kind, 5
--   how many messages the channel keeps (0: all),
--       6 when to look again at the latest (Unix ms, 0: when something is to go)
-- Reply how many messages that were
local STREAM_WAIT_MS = 60000 -- until a stream that goes on is looked at again
local now, retention, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local keeps, removed = tonumber(ARGV[5]), 0
-- The newest seq to be trimmed: beyond what the channel keeps.
local trim_seq = keeps > 0 and tonumber(redis.call('HGET', KEYS[1], 'seq') or '0') - keeps or 0

-- place: of the entry, as the log has it; expires: Unix ms, nil: never.
local function remove(place, expires)
  removed = removed + redis.call('XDEL', KEYS[2], place)
  if not expires then return end
  redis.call('ZREM', KEYS[3], place)
  redis.call('ZREM', KEYS[4], string.match(place, '^%d+') .. ':' .. int(expires))
end

local expired = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, most)
for at = 1, #expired, 2 do remove(expired[at], tonumber(expired[at + 1])) end

local function is_over(entry)
  return entry.seq <= trim_seq or retention > 0 and now >= accepted_at(entry) + retention
end

local waits = nil
if retention > 0 or trim_seq > 0 then
  local last = retention > 0 and '+' or int(trim_seq)
  for _, raw in ipairs(redis.call('XRANGE', KEYS[2], '-', last, 'COUNT', most)) do
    local entry = log_entry(raw)
    if not is_over(entry) then break end
    if entry.stream and not forget_stream(KEYS[1], entry.stream) then
      waits = now + STREAM_WAIT_MS -- it goes when it is over
      break
    end
    remove(entry.place, entry.expires)
  end
end

local oldest = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
if not oldest then
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[5], ARGV[3])
  redis.call('HSET', KEYS[1], 'bare', 1) -- to be entered again with the next message
  return removed
end
local due = tonumber(ARGV[6])
if due == 0 then due = math.huge end
local entry = log_entry(oldest)
if waits then
  due = waits
elseif entry.seq <= trim_seq then
  due = now
elseif retention > 0 then
  due = math.min(due, accepted_at(entry) + retention)
end
local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
if first[1] then due = math.min(due, tonumber(first[2])) end
redis.call('ZADD', KEYS[5], due < math.huge and int(due) or '+inf', ARGV[3])
return removed
