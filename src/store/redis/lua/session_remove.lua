-- Removes a session that its node no longer serves, and the records of its end. Notifies the user's
-- watchers if the session had an entry.
--
-- ARGV   uid
--        session_id
--        end_reason    '' if only the session's connection ended
--        bucket        bucket of the user's events, see `user_feed.lua`
--        event_ids     message id counter
--        on_demand     1 if session events are written, else 0
--        is_announced  1 if the user is listed in `online` of the bucket, else 0
-- Reply  'announce' if the node must first add the user to `online` (see `outbox_demand`), else
--        nil
local sessions = KEYS[1]
local uid, session_id, end_reason = ARGV[1], ARGV[2], ARGV[3]
local bucket, event_ids, on_demand, is_announced = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local user = user_of(sessions, uid, bucket)
write_when_full(user.sessions)
if outbox_demand(user, is_announced) == 'announce' then return 'announce' end
local entry = read_entry(user, session_id)
if entry then
  local cause = end_reason ~= '' and end_reason or nil
  redis.call('HDEL', user.sessions, entry.id)
  note_left(user, entry, cause)
  publish_presence(user, cause)
  write_user_events(user, nil, event_ids, on_demand)
end
forget_end(user, session_id)
