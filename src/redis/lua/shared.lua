-- What several steps share; put in front of each of them. `wire.ts` is the other half of the frames.
local EPOCH = 1704067200000 -- 2024-01-01 UTC in Unix milliseconds
local BUCKETS = 64

-- The next message id of a bucket: 41 bits of milliseconds, 6 of the bucket, 6 that count. Never twice, always growing, whatever the clocks say.
local function next_id(key, bucket, now)
  local id = (now - EPOCH) * 4096 + bucket * BUCKETS
  local last = redis.call('SET', key, string.format('%d', id), 'GET')
  if not last or tonumber(last) < id then return id end
  last = tonumber(last)
  id = last + 1
  if math.floor(id / BUCKETS) % BUCKETS ~= bucket then
    id = (math.floor(last / 4096) + 1) * 4096 + bucket * BUCKETS
  end
  redis.call('SET', key, string.format('%d', id))
  return id
end

-- A number below 2^53 as a string without exponent.
local function int(n) return string.format('%d', n) end

local function message_frame(pub, id, seq, record, extra)
  return struct.pack('>BBdddI4', 1, 1, pub, id, seq, #record) .. record .. extra
end

local function event_frame(pub, seq, index, offset, state, record)
  return struct.pack('>BBddddB', 1, 2, pub, seq, index, offset, state) .. record
end

-- One user's copy of a command; origin: the session not to push it to, or empty.
local function command_frame(id, seq, record, uid, origin)
  return struct.pack('>BBddI4', 1, 5, id, seq, #record) .. record .. struct.pack('>I2', #uid) .. uid .. origin
end

-- Tells every topic in ARGV[from] .. ARGV[#ARGV].
local function tell(from, frame)
  for at = from, #ARGV do redis.call('SPUBLISH', ARGV[at], frame) end
end
