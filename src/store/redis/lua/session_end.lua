-- Removes a session and publishes the reason to its node in one atomic step, because a node that
-- misses the event would serve the session forever. The reason is published even if the session has
-- no entry, because the event of an earlier call may have been lost.
--
-- ARGV   uid
--        session_id
--        reason        reason why the session ends
--        level         level of the session
--        bucket        bucket of the user's events, see `user_feed.lua`
--        event_ids     message id counter
--        on_demand     1 if session events are written, else 0
--        is_announced  1 if the user is listed in `online` of the bucket, else 0
-- Reply  'announce' if the node must first add the user to `online` (see `outbox_demand`), else
--        nil
local sessions = KEYS[1]
local uid, session_id, reason, level = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local bucket, event_ids, on_demand, is_announced = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local user = user_of(sessions, uid, bucket)
write_when_full(user.sessions)
if outbox_demand(user, is_announced) == 'announce' then return 'announce' end
local entry = read_entry(user, session_id)
if entry then
  remove_entry(user, entry, reason)
elseif level ~= '1' then
  record_end(user, session_id, 0, reason)
end
publish_end(user, session_id, reason)
write_user_events(user, nil, event_ids, on_demand)
