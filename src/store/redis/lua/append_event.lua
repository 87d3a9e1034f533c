-- Adds an event to the feed of a bucket. The feed must be on. This file is placed in front of
-- scripts, and is part of the library. Generated constants (`EVENT_CONSTANTS` in `steps/events.ts`)
-- name the types.
--   feed, events  keys of the bucket
--   counter       message id counter
--   bucket        of the counter, -1 on a single server
--   key           see `EventRow`
--   event_type    index of the type in `EVENT_TYPES`
--   seq           seq of the message to which the event refers, as a string, '0' for none
--   fields        JSON object
local function append_event(feed, events, counter, bucket, key, event_type, seq, fields)
  local number = int(redis.call('HGET', feed, 'number') + 1)
  local id = int(reserve_ids(counter, bucket, server_now, 1))
  redis.call('XADD', events, number .. '-' .. id, 't', int(event_type), 'k', key, 's', seq, 'd', fields)
  redis.call('HSET', feed, 'number', number, 'id', id)
end
