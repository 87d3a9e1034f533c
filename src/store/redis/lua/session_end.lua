-- Takes a session out and publishes the reason to its node, atomically: a session removed without
-- that event would be served for ever. Publishes also when the session is not in: the event of an
-- earlier call may be lost. Notifies those who watch the user if it was in.
-- KEYS: the user's sessions
-- ARGV: uid, sessionId, the reason, the session's level
-- Reply: nothing
local user = user_of(KEYS[1], ARGV[1])
local here = read_entry(user, ARGV[2])
if here then
  take_out(user, here, ARGV[3])
elseif ARGV[4] ~= '1' then
  remember_end(user, ARGV[2], 0, ARGV[3])
end
publish_end(user, ARGV[2], ARGV[3])
