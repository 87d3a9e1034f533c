-- Removes a session that its node no longer serves, and the records of its end. Notifies the user's
-- watchers if the session had an entry.
--
-- KEYS   1  sessions
-- ARGV   1  uid
--        2  sessionId
--        3  cause      reason for its end, '' if only its connection ended
--        4  beginning of the names of the keys of the bucket of the user's events, or ''
--        5  counter of message ids
--        6  1 if the events of sessions are written, else 0
--        7  1 if the user is listed in `online` of the bucket, else 0
-- Reply  nil, or 'announce', see `outbox_demand`
local user = user_of(KEYS[1], ARGV[1], ARGV[4])
if outbox_demand(user, ARGV[7]) == 'announce' then return 'announce' end
local entry = read_entry(user, ARGV[2])
if entry then
  local cause = ARGV[3] ~= '' and ARGV[3] or nil
  redis.call('HDEL', user.sessions, entry.id)
  note_left(user, entry, cause)
  publish_presence(user, cause)
  write_user_events(user, nil, ARGV[5], ARGV[6])
end
forget_end(user, ARGV[2])
