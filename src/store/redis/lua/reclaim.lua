-- Removes from a channel's log the messages that have expired, are past retention or exceed
-- `max_messages`, and records when the channel must be processed again.
--
-- ARGV   now           Unix ms
--        retention     ms, 0 means no limit
--        key           channel key
--        count         maximum number of expired messages to remove, and separately of messages
--                      that are past retention or exceed `max_messages`
--        max_messages  maximum number of messages in the channel, 0 means no limit
--        latest_due    latest Unix ms at which the channel must be processed again, 0 means no such
--                      limit
-- Reply  number of removed messages
local head, log, expiry, red_dots, due_channels, labels = unpack(KEYS)
local now, retention, key, count = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local max_messages, latest_due = tonumber(ARGV[5]), ARGV[6]
-- Delay after which the channel is processed again if an active stream prevents the removal.
local STREAM_WAIT_MS = 60000
local removed = 0
local trim_seq = max_messages > 0 and tonumber(redis.call('HGET', head, 'seq') or '0') - max_messages or 0

write_when_full(due_channels)

local has_labels = redis.call('EXISTS', labels) == 1

local function remove(entry_id, expires)
  removed = removed + redis.call('XDEL', log, entry_id)
  local seq = string.match(entry_id, '^%d+')
  if has_labels then redis.call('ZREMRANGEBYSCORE', labels, seq, seq) end
  if not expires then return end
  redis.call('ZREM', expiry, entry_id)
  redis.call('ZREM', red_dots, seq .. ':' .. int(expires))
end

local expired = redis.call('ZRANGEBYSCORE', expiry, '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, count)
for at = 1, #expired, 2 do
  local raw_entry = redis.call('XRANGE', log, expired[at], expired[at])[1]
  local entry = raw_entry and log_entry(raw_entry) or {}
  if entry.stream and not forget_stream(head, entry.stream) then
    -- The message is removed after its stream has ended.
    redis.call('ZADD', expiry, int(now + STREAM_WAIT_MS), expired[at])
  else
    remove(expired[at], entry.expires or tonumber(expired[at + 1]))
  end
end

local function is_removable(entry)
  return entry.seq <= trim_seq or retention > 0 and now >= entry_ms(entry) + retention
end

local retry_ms = nil
if retention > 0 or trim_seq > 0 then
  local last = retention > 0 and '+' or int(trim_seq)
  for _, raw_entry in ipairs(redis.call('XRANGE', log, '-', last, 'COUNT', count)) do
    local entry = log_entry(raw_entry)
    if not is_removable(entry) then break end
    if entry.stream and not forget_stream(head, entry.stream) then
      retry_ms = now + STREAM_WAIT_MS -- the message is removed after its stream has ended
      break
    end
    remove(entry.entry_id, entry.expires)
  end
end

local oldest = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
if not oldest then
  redis.call('DEL', log)
  redis.call('ZREM', due_channels, key)
  redis.call('HSET', head, 'bare', 1) -- the next message adds the channel to `due` again
  return removed
end
local due = tonumber(latest_due)
if due == 0 then due = math.huge end
local entry = log_entry(oldest)
if retry_ms then
  due = retry_ms
elseif entry.seq <= trim_seq then
  due = now
elseif retention > 0 then
  due = math.min(due, entry_ms(entry) + retention)
end
local first = redis.call('ZRANGE', expiry, 0, 0, 'WITHSCORES')
if first[1] then due = math.min(due, tonumber(first[2])) end
redis.call('ZADD', due_channels, due < math.huge and int(due) or '+inf', key)
return removed
