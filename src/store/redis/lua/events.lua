-- Writes events to the feed of a bucket, in the same script as the change that they describe.
-- Placed in front of scripts, after `append_event.lua`.
--
-- These names stand for the last keys and the last arguments of each script.
--   FEED, EVENTS  keys of the bucket
--   EVENT_IDS     message id counter
--   EVENT_BUCKET  bucket of the counter, -1 on a single server
--   EVENT_KEY     key of the events, see `EventRow`
local FEED, EVENTS, EVENT_IDS = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS]
local EVENT_BUCKET, EVENT_KEY = tonumber(ARGV[#ARGV - 1]), ARGV[#ARGV]

-- Returns true if the feed is on. Must be called before the script changes anything. Fails if a key
-- has the wrong type, so that `emit` cannot fail later.
local function is_feed_on()
  if redis.call('HEXISTS', FEED, 'number') == 0 then return false end
  redis.call('XLEN', EVENTS)
  redis.call('GET', EVENT_IDS)
  return true
end

-- Emits an event, see `append_event.lua`. Must be called only if `is_feed_on()` is true.
local function emit(event_type, seq, fields)
  append_event(FEED, EVENTS, EVENT_IDS, EVENT_BUCKET, EVENT_KEY, event_type, seq, fields)
end
