-- Puts a command into inboxes, into each once however often the step is repeated, and tells who listens to its user. Cluster: one user at a time.
-- KEYS: of each user inseq, in, inx, inids. ARGV: now, messageId, endMs, whether it ends before others of its time (0 or 1), the most copies an
-- inbox holds, payload bytes, record, origin ("": none), then uid and topic of each user. Reply: how many older copies left full inboxes.
local HEAD = 8 -- ARGV before the users
local LOOK_EVERY = 32 -- copies between looks for expired ones
local FEW = 100 -- expired copies taken out at once; ids known at least
local KNOWN_MS = 3600000 -- so long every id is known, whatever their number
local IDS_MS = 86400000 -- then a user's ids may be forgotten
local now, id, ends = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most, record = tonumber(ARGV[5]), ARGV[7]
local dropped = 0

-- Reclaims the storage of `key` in `ms` at the earliest.
local function keep(key, ms)
  local at_least = math.max(1, ms) -- its end may have passed on the way
  if redis.call('PTTL', key) < at_least then redis.call('PEXPIRE', key, int(at_least)) end
end

-- Remembers that the user was given the command: also when the copy is gone, a repetition must not give it again.
local function know(key)
  redis.call('ZADD', key, int(now), int(id))
  redis.call('PEXPIRE', key, IDS_MS)
  if redis.call('ZCARD', key) <= FEW then return end
  for _, old in ipairs(redis.call('ZRANGE', key, 0, 3)) do
    if tonumber(redis.call('ZSCORE', key, old)) < now - KNOWN_MS then redis.call('ZREM', key, old) end
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
  if not redis.call('ZSCORE', ids, int(id)) then
    put(KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], ARGV[arg + 1], ARGV[arg + 2])
    know(ids)
  end
end
return dropped
