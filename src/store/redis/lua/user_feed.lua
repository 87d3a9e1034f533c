-- Writes user events. Placed in front of scripts, after `append_event.lua`. On a single server, the
-- scripts write the events to the feed. On a Redis Cluster, where the feed is in a different slot,
-- they write the events to the user's outbox, and the node moves them to the feed with
-- `outbox_put.lua`.
--
-- These functions use the following fields of a `user`:
--   uid
--   bucket      key prefix of the bucket that contains the user's events,
--               `outbox` if that bucket is in a different slot, '' if the feed is off
--   announced   see `user_events.lua`
--   announcing  STRING  present for a minute from the moment when a node must add the user to
--                       `online` of the bucket. While the key exists, no node removes the user from
--                       that list.
--   outbox      LIST    MessagePack lists: number, type, `events` or `onDemandEvents`, fields. An
--                       entry with a type below 0 is not an event. It records that the user's last
--                       session has left, and its fields are the Unix ms of this leave
--   outboxSeq   STRING  number of the newest entry of the outbox, kept for two days. Numbers grow
--                       even after Redis has lost its last writes.
-- Outbox entries are never dropped. While the outbox has `MAX_OUTBOX` entries, scripts that could
-- add any number of entries over time do nothing (see `outbox_demand`). All other scripts add only
-- a few entries per session of the user.
local OUTBOX = 'outbox'
local MAX_OUTBOX = 1000
local OUTBOX_TTL = 172800000
local ANNOUNCING_TTL = 60000

local function has_user_feed(user)
  if user.bucket == OUTBOX then return true end
  return user.bucket ~= '' and redis.call('HEXISTS', user.bucket .. 'feed', 'number') == 1
end

local function is_outbox_full(user)
  return user.bucket == OUTBOX and redis.call('LLEN', user.outbox) >= MAX_OUTBOX
end

local function put_outbox(user, events, event_type, fields)
  local number = math.max(server_now * 1000, 1 + tonumber(redis.call('GET', user.outbox .. 'Seq') or '0'))
  redis.call('SET', user.outbox .. 'Seq', int(number), 'PX', OUTBOX_TTL)
  redis.call('RPUSH', user.outbox, cmsgpack.pack({ int(number), event_type, events, fields }))
end

local function emit_user(user, ids, events, event_type, fields)
  if user.bucket == OUTBOX then return put_outbox(user, events, event_type, fields) end
  append_event(user.bucket .. 'feed', user.bucket .. events, ids, WHOLE_SERVER, 'u:' .. user.uid, event_type, '0', fields)
end

-- Returns the action that the node must take before the script makes a change that may cause
-- events. Returns nil if no action is needed. `announce`: add the user to `online` of the bucket,
-- so that another node finds the outbox even if this node dies. `full`: move the outbox to the
-- feed.
--   is_announced  '1' if the node has already added the user to `online`
local function outbox_demand(user, is_announced)
  if user.bucket ~= OUTBOX then return nil end
  if is_announced ~= '1' and redis.call('EXISTS', user.announced) == 0 then
    redis.call('SET', user.announcing, '1', 'PX', ANNOUNCING_TTL)
    return 'announce'
  end
  return is_outbox_full(user) and 'full' or nil
end
