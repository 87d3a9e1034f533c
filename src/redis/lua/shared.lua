-- What steps share; put in front of each of them, less the functions that it does not name
-- (`script.ts`). `wire.ts` is the other half of the frames.
local EPOCH = 1704067200000 -- 2024-01-01 UTC in Unix milliseconds
local BUCKETS = 64
local WHOLE_SERVER = -1

-- A number below 2^53 as a string without exponent. Redis makes one of each number it is given, at
-- more than twice the cost.
local function int(n) return string.format('%d', n) end

-- The message id behind `last`: 41 bits of milliseconds; of a bucket, on a Redis Cluster, 6 bits
-- that name it; the rest count. Never twice, always growing, whatever the clocks say.
local function id_behind(last, bucket, now)
  local id = (now - EPOCH) * 4096
  if bucket ~= WHOLE_SERVER then id = id + bucket * BUCKETS end
  if last < id then return id end
  id = last + 1
  if bucket == WHOLE_SERVER or math.floor(id / BUCKETS) % BUCKETS == bucket then return id end
  return (math.floor(last / 4096) + 1) * 4096 + bucket * BUCKETS
end

-- Takes `most` ids (64 at most) from the counter `key` and returns the first one; each further one
-- is `id_behind` the one before. now: of the call, in Unix ms, however long a message waited for
-- it: after a fail-over that lost some, later ids have to be greater than theirs.
local function take_ids(key, bucket, now, most)
  local first = id_behind(0, bucket, now)
  local last = tonumber(redis.call('SET', key, int(first + most - 1), 'GET') or '0')
  if last < first then return first end
  first = id_behind(last, bucket, now)
  local newest = first
  for _ = 2, most do newest = id_behind(newest, bucket, now) end
  redis.call('SET', key, int(newest))
  return first
end

-- What stands in front of a message's record and extra on a topic.
local function message_head(pub, id, seq) return struct.pack('>BBddd', 2, 1, pub, id, seq) end

-- A publication of messages: head, record and extra of each, in their order. MessagePack joins many
-- texts in one go.
local function messages_frame(parts) return cmsgpack.pack(parts) end

local function message_frame(pub, id, seq, record, extra) return messages_frame({ message_head(pub, id, seq), record, extra }) end

local function event_frame(pub, seq, index, offset, state, record)
  return struct.pack('>BBddddB', 2, 2, pub, seq, index, offset, state) .. record
end

-- One user's copy of a command; origin: the session not to push it to, or empty.
local function command_frame(id, seq, record, uid, origin)
  return struct.pack('>BBddI4', 2, 5, id, seq, #record) .. record .. struct.pack('>I2', #uid) .. uid .. origin
end

-- Who is no member of a group any more; false: any of its members may be none.
local function removal_frame(pub, group, uids)
  return struct.pack('>BBd', 2, 7, pub) .. cmsgpack.pack({ group, uids })
end

-- Tells every topic in ARGV[from] .. ARGV[#ARGV].
local function tell(from, frame)
  for at = from, #ARGV do redis.call('SPUBLISH', ARGV[at], frame) end
end
