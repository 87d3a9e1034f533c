-- Writes the items of one key for a migration idempotently, or checks that they exist. A process
-- whose lease has ended on this server's clock writes nothing.
--
-- ARGV  fence    Unix milliseconds on the clock of this server, or 'check'
--       how      how the items are written, see below
--       min_ttl  minimum time until the key expires (ms; 0: no expiry is set)
--       then the items
--
--       how                    items
--       HSET, SADD, ZADD, SET  the arguments of the command after the key
--       LT                     as for ZADD; an existing lower score remains. Not checked, because
--                              other facts may have changed the score
--       XADD                   for each entry: its id, the number of its fields and values, then
--                              the fields and values. The ids must ascend
--       XNEW                   as for XADD, but the first entry is the oldest of the key, and an
--                              existing key is deleted before the entries are written
-- Reply 1     written, or equal
--       0     missing or different
--       nil   the lease has ended, and nothing was written
local key = KEYS[1]
local fence, how, min_ttl = ARGV[1], ARGV[2], ARGV[3]
local FIRST_ITEM = 4
local CHUNK = 1000 -- maximum number of items in one call; even, because some items are pairs

local function in_chunks(step)
  for first = FIRST_ITEM, #ARGV, CHUNK do step(first, math.min(first + CHUNK - 1, #ARGV)) end
end

-- Calls step(id, first, last) for each entry with the range of its fields and values, until one
-- call returns false. Returns true if all calls returned true.
local function each_entry(step)
  local at = FIRST_ITEM
  while at < #ARGV do
    local last = at + 1 + tonumber(ARGV[at + 1])
    if not step(ARGV[at], at + 2, last) then return false end
    at = last + 1
  end
  return true
end

local function same(values, first, last)
  if #values ~= last - first + 1 then return false end
  for at = first, last do
    if values[at - first + 1] ~= ARGV[at] then return false end
  end
  return true
end

local function is_there(at)
  if how == 'HSET' then return redis.call('HGET', key, ARGV[at]) == ARGV[at + 1] end
  if how == 'ZADD' then
    local score = redis.call('ZSCORE', key, ARGV[at + 1])
    return score and tonumber(score) == tonumber(ARGV[at])
  end
  return redis.call('SISMEMBER', key, ARGV[at]) == 1
end

local function check()
  if how == 'LT' then return true end
  if how == 'SET' then return redis.call('GET', key) == ARGV[FIRST_ITEM] end
  if how == 'XADD' or how == 'XNEW' then
    return each_entry(function(id, first, last)
      local entry = redis.call('XRANGE', key, id, id)[1]
      return entry and same(entry[2], first, last)
    end)
  end
  for at = FIRST_ITEM, #ARGV, how == 'SADD' and 1 or 2 do
    if not is_there(at) then return false end
  end
  return true
end

local function write_entries()
  if how == 'XNEW' then redis.call('DEL', key) end
  local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  local last_seq = newest and tonumber(string.match(newest[1], '^%d+')) or 0
  each_entry(function(id, first, last)
    if tonumber(string.match(id, '^%d+')) > last_seq then
      redis.call('XADD', key, id, unpack(ARGV, first, last))
    end
    return true
  end)
end

if fence == 'check' then return check() and 1 or 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if now >= tonumber(fence) then return false end

if how == 'XADD' or how == 'XNEW' then
  write_entries()
elseif how == 'LT' then
  in_chunks(function(first, last) redis.call('ZADD', key, 'LT', unpack(ARGV, first, last)) end)
else
  in_chunks(function(first, last) redis.call(how, key, unpack(ARGV, first, last)) end)
end
local keep_ms = tonumber(min_ttl)
if keep_ms > 0 and redis.call('PTTL', key) < keep_ms then redis.call('PEXPIRE', key, min_ttl) end
return 1
