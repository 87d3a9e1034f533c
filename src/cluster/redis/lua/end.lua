-- Removes a session and publishes the reason to its node, atomically: a session removed without that event would be served for ever. Publishes also
-- when the session is not in the directory: the event of an earlier call may be lost. A main session that was in it cannot be continued. Notifies
-- those who watch the user if it was in.
-- KEYS: the user's sessions HASH sessionId → entry; the user's newest logins HASH flag → login
-- ARGV: sessionId, the user's presence topic, the LOOSE frame of a presence event, the reason, ms that a login is kept, the user's topic, the LOOSE
--   frame that ends the session or ''
-- Reply: 1, or 0 when it was not in
local here = redis.call('HGET', KEYS[1], ARGV[1])
if here then
  local old = read_entry(here)
  local newest = old.level == 1 and read_login(KEYS[2], int(old.flag)) or nil
  if newest and newest.order == old.order then
    newest.ended = ARGV[4]
    write_login(KEYS[2], int(old.flag), newest, ARGV[5])
  end
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('SPUBLISH', ARGV[2], ARGV[3])
end
if ARGV[7] ~= '' then redis.call('SPUBLISH', ARGV[6], ARGV[7]) end
return here and 1 or 0
