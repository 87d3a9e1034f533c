-- Puts a command into inboxes, into each once however often the step is repeated, and tells who listens to its user. Cluster: one user at a time.
-- KEYS: of each user inseq, in, inx, inids. ARGV: now, messageId, endMs, whether it ends before others of its time (0 or 1), the most copies an
-- inbox holds, payload bytes, record, origin ("": none), then uid and topic of each user.
-- Reply: how many older copies left full inboxes, and how many were not put since they came too late.
--
-- What a user was given is known by `inids`, also when the copy is gone: until the last of those commands ends, the newest 100 ids, and those of
-- the last hour up to as many as the inbox holds (at least 1000). Of the ids that were forgotten, the greatest of each bucket is kept: a command
-- below it may have been given before and is not put. Ids of one bucket grow with time whatever clocks say, so that this meets none but those that
-- come an hour, or as many commands as the inbox holds, too late.
local HEAD = 8 -- ARGV before the users
local LOOK_EVERY = 32 -- copies between looks for expired ones
local FEW = 100 -- expired copies taken out at once; ids known at least
local KNOWN_MS = 3600000
local LEAST_MOST = 1000
local SPACE_MS = 60000 -- clocks of nodes and Redis may differ
local TIMES_END = 2 ^ 43 -- in `inids` times are below it, forgotten ids (which stand under their bucket) above
local now, id, ends = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most, record = tonumber(ARGV[5]), ARGV[7]
local dropped = 0

-- Reclaims the storage of `key` in `ms` at the earliest.
local function keep(key, ms)
  local at_least = math.max(1, ms) -- its end may have passed on the way
  if redis.call('PTTL', key) < at_least then redis.call('PEXPIRE', key, int(at_least)) end
end

-- Under which name `inids` keeps the greatest forgotten id of a bucket.
local function forgotten_like(message_id) return 'f' .. int(math.floor(message_id / BUCKETS) % BUCKETS) end

local forgotten = forgotten_like(id)

-- Remembers that the user was given the command, and forgets others that are too old or too many.
local function know(ids)
  redis.call('ZADD', ids, int(now), int(id))
  local size, ms = redis.call('ZCARD', ids), int(math.max(1, ends - now + SPACE_MS))
  if size == 1 then redis.call('PEXPIRE', ids, ms) else redis.call('PEXPIRE', ids, ms, 'GT') end
  if size <= FEW then return end
  local oldest, at_most = redis.call('ZRANGE', ids, 0, 3, 'WITHSCORES'), math.max(most, LEAST_MOST)
  if size <= at_most and tonumber(oldest[2]) >= now - KNOWN_MS then return end
  local known = redis.call('ZCOUNT', ids, '-inf', int(TIMES_END))
  for at = 1, #oldest, 2 do
    local is_old = tonumber(oldest[at + 1]) < now - KNOWN_MS
    if known <= FEW or not (is_old or known > at_most) then return end
    redis.call('ZREM', ids, oldest[at])
    redis.call('ZADD', ids, 'GT', oldest[at], forgotten_like(tonumber(oldest[at])))
    known = known - 1
  end
end

local function put(seqs, copies, early, uid, topic)
  local seq = redis.call('INCR', seqs)
  redis.call('XADD', copies, int(seq) .. '-0', 'x', int(ends), 'i', int(id), 'n', ARGV[6], 'r', record)
  keep(copies, ends - now)
  if ARGV[4] == '1' then
    redis.call('ZADD', early, int(ends), int(seq))
    keep(early, ends - now)
  end
  local isFull = redis.call('XLEN', copies) > most
  if isFull or seq % LOOK_EVERY == 0 then expire_copies(copies, early, now, FEW) end
  if isFull then dropped = dropped + redis.call('XTRIM', copies, 'MAXLEN', most) end
  redis.call('SPUBLISH', topic, command_frame(id, seq, record, uid, ARGV[8]))
end

for user = 0, #KEYS / 4 - 1 do
  local key, arg = user * 4, HEAD + user * 2
  local ids = KEYS[key + 4]
  local found = redis.call('ZMSCORE', ids, int(id), forgotten)
  if not found[1] then
    if found[2] and id <= tonumber(found[2]) then
      dropped = dropped + 1
    else
      put(KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], ARGV[arg + 1], ARGV[arg + 2])
      know(ids)
    end
  end
end
return dropped
