-- Writes one fact of a move, the same however often it is repeated. Nobody else writes there meanwhile: a process that was frozen, and whose right to
-- move has passed to another one, writes nothing.
-- KEYS  its key
-- ARGV  until when the process has the right (Unix ms of this server's clock), how, for how long the key is to be kept at least (ms, 0: for ever), then
--   HSET, SADD, SET, ZADD  what follows the key; of ZADD GT, LT or NX comes first
--   newest   a value that begins with Unix ms, unless a newer one is there
--   list     all values of a list
--   ids      a message id, to which a counter is raised
--   entries  seq of the entry that must be there before the first one (0: none need be); of each entry its place, the number of its fields and values,
--            and these; seqs rise
-- Reply 1; 0: the entry before is missing, so nothing was written; nil: it is too late, nothing was written
local CHUNK = 1000 -- items of one call, in pairs
local key, how, keep = KEYS[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
if tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) >= tonumber(ARGV[1]) then return false end

local function leading(text) return tonumber(string.match(text, '^%d+')) end

-- Calls step(first, last) for stretches of the arguments from `from` on.
local function in_chunks(from, step)
  for first = from, #ARGV, CHUNK do step(first, math.min(first + CHUNK - 1, #ARGV)) end
end

local function write_entries()
  local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  local last = newest and leading(newest[1]) or 0
  if last < tonumber(ARGV[4]) then return false end
  local at = 5
  while at < #ARGV do
    local place, count = ARGV[at], tonumber(ARGV[at + 1])
    if leading(place) > last then redis.call('XADD', key, place, unpack(ARGV, at + 2, at + 1 + count)) end
    at = at + 2 + count
  end
  return true
end

if how == 'newest' then
  local before = redis.call('GET', key)
  if before and leading(before) > leading(ARGV[4]) then return 1 end
  redis.call('SET', key, ARGV[4])
elseif how == 'list' then
  redis.call('DEL', key)
  in_chunks(4, function(first, last) redis.call('RPUSH', key, unpack(ARGV, first, last)) end)
elseif how == 'ids' then
  if tonumber(redis.call('GET', key) or 0) < tonumber(ARGV[4]) then redis.call('SET', key, ARGV[4]) end
elseif how == 'entries' then
  if not write_entries() then return 0 end
elseif how == 'ZADD' then
  in_chunks(5, function(first, last) redis.call('ZADD', key, ARGV[4], unpack(ARGV, first, last)) end)
else
  in_chunks(4, function(first, last) redis.call(how, key, unpack(ARGV, first, last)) end)
end
if keep > 0 and redis.call('PTTL', key) < keep then redis.call('PEXPIRE', key, ARGV[3]) end
return 1
