-- Writes the items of one key for a migration idempotently, or checks that they exist. A process
-- whose lease has ended on the clock of this server writes nothing.
--
-- KEYS  1     the key
-- ARGV  1     the fence (Unix milliseconds on the clock of this server), or 'check'
--       2     how the items are written, see below
--       3     minimum time until the key expires (ms; 0: no expiry is set)
--       4...  items
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
local CHUNK = 1000 -- maximum number of items in one call; even, because some items are pairs
local key, how, keep = KEYS[1], ARGV[2], tonumber(ARGV[3])

local function in_chunks(step)
  for first = 4, #ARGV, CHUNK do step(first, math.min(first + CHUNK - 1, #ARGV)) end
end

-- Calls step(id, first, last) for each entry with the range of its fields and values, until one
-- call returns false. Returns true if all calls returned true.
local function each_entry(step)
  local at = 4
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
  if how == 'SET' then return redis.call('GET', key) == ARGV[4] end
  if how == 'XADD' or how == 'XNEW' then
    return each_entry(function(id, first, last)
      local entry = redis.call('XRANGE', key, id, id)[1]
      return entry and same(entry[2], first, last)
    end)
  end
  for at = 4, #ARGV, how == 'SADD' and 1 or 2 do
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

if ARGV[1] == 'check' then return check() and 1 or 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if now >= tonumber(ARGV[1]) then return false end

if how == 'XADD' or how == 'XNEW' then
  write_entries()
elseif how == 'LT' then
  in_chunks(function(first, last) redis.call('ZADD', key, 'LT', unpack(ARGV, first, last)) end)
else
  in_chunks(function(first, last) redis.call(how, key, unpack(ARGV, first, last)) end)
end
if keep > 0 and redis.call('PTTL', key) < keep then redis.call('PEXPIRE', key, ARGV[3]) end
return 1
