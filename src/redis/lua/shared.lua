-- Functions shared by all scripts and libraries. `script.ts` places them in front of each script
-- and removes the functions that the script does not use. `wire.ts` decodes the frames that these
-- functions build.
local EPOCH = 1704067200000 -- 2024-01-01 UTC in Unix milliseconds
local BUCKETS = 64
local WHOLE_SERVER = -1
local MAX_ID = 9007199254740991 -- 2^53 - 1. Higher numbers are not exact.

-- Formats an integer below 2^53 without an exponent. If a script passes a number to `redis.call`,
-- Redis formats it itself, at more than twice the cost.
local function int(n) return string.format('%d', n) end

-- Lets the rest of a script write even if Redis is full. A full Redis rejects writes of a script
-- only until the script has called a write command that needs no memory, such as UNLINK. `key` is
-- any key of the script. Used before writes that remove data, or that end or continue a session.
local function write_when_full(key) redis.call('UNLINK', key .. ':none') end

local function message_ms(id) return EPOCH + math.floor(id / 4096) end

-- Returns the next message id after `last`. The upper 41 bits are milliseconds since EPOCH. On a
-- Redis Cluster the next 6 bits are the bucket. The remaining bits are a counter. Ids always
-- increase and are never reused, regardless of the clocks.
local function next_id(last, bucket, now)
  local id = (now - EPOCH) * 4096
  if bucket ~= WHOLE_SERVER then id = id + bucket * BUCKETS end
  if last < id then return id end
  id = last + 1
  if bucket == WHOLE_SERVER or math.floor(id / BUCKETS) % BUCKETS == bucket then return id end
  return (math.floor(last / 4096) + 1) * 4096 + bucket * BUCKETS
end

-- Returns the time for new ids. On a Redis Cluster, a delayed call uses the time at which it runs,
-- because the buckets have no common counter and their ids must be comparable.
--   now  Unix ms when the call was sent, by the caller's estimate of the server's clock
local function id_ms(bucket, now)
  if bucket == WHOLE_SERVER then return now end
  return math.max(now, server_now)
end

-- Reserves `count` ids (at most 64) from the counter at `key` and returns the first one. Each
-- following id is the `next_id` of the previous one. Fails and reserves nothing if an id would be
-- higher than MAX_ID.
--   now  Unix ms at the time of the call, not when the message was queued, because new ids
--        must be higher than the ids of messages that a fail-over lost
local function reserve_ids(key, bucket, now, count)
  local first = next_id(0, bucket, now)
  local former = redis.call('SET', key, int(first + count - 1), 'GET') or '0'
  local last = tonumber(former)
  if last < first then return first end
  first = next_id(last, bucket, now)
  local newest = first
  for _ = 2, count do newest = next_id(newest, bucket, now) end
  if newest > MAX_ID then
    redis.call('SET', key, former)
    error({ err = 'IDLIMIT No message id is left' })
  end
  redis.call('SET', key, int(newest))
  return first
end

local function message_head(pub, id, seq) return struct.pack('>BBddd', 2, 1, pub, id, seq) end

-- Packs all strings with a single call, which is faster than joining them one by one.
local function messages_frame(strings) return cmsgpack.pack(strings) end

local function message_frame(pub, id, seq, record, extra) return messages_frame({ message_head(pub, id, seq), record, extra }) end

local function event_frame(pub, seq, index, offset, state, head, log_frame)
  return struct.pack('>BBddddBI2', 2, 2, pub, seq, index, offset, state, #head) .. head .. log_frame
end

local function records_frame(pub, seq, offset, cut_index, max_data, head, log_frame)
  return struct.pack('>BBddddI4I2', 2, 10, pub, seq, offset, cut_index, max_data, #head) .. head .. log_frame
end

-- Encodes one user's copy of a command. `origin` is the session that gets no push. It is
-- '' if all sessions get the push.
local function command_frame(id, seq, record, uid, origin)
  return struct.pack('>BBddI4', 2, 5, id, seq, #record) .. record .. struct.pack('>I2', #uid) .. uid .. origin
end

-- Encodes the removal of members from a group. `uids` is false if any member may have been removed.
local function removal_frame(pub, group, uids)
  return struct.pack('>BBd', 2, 7, pub) .. cmsgpack.pack({ group, uids })
end
