-- Removes a session and publishes the reason to its node in one atomic step, because a node that
-- misses the event would serve the session forever. The reason is published even if the session has
-- no entry, because the event of an earlier call may have been lost.
--
-- KEYS   1  sessions
-- ARGV   1  uid
--        2  sessionId
--        3  reason
--        4  level of the session
--        5  beginning of the names of the keys of the bucket of the user's events, or ''
--        6  counter of message ids
--        7  1 if the events of sessions are written, else 0
--        8  1 if the user is listed in `online` of the bucket, else 0
-- Reply  nil, or 'announce', see `outbox_demand`
local user = user_of(KEYS[1], ARGV[1], ARGV[5])
if outbox_demand(user, ARGV[8]) == 'announce' then return 'announce' end
local entry = read_entry(user, ARGV[2])
if entry then
  remove_entry(user, entry, ARGV[3])
elseif ARGV[4] ~= '1' then
  record_end(user, ARGV[2], 0, ARGV[3])
end
publish_end(user, ARGV[2], ARGV[3])
write_user_events(user, nil, ARGV[6], ARGV[7])
