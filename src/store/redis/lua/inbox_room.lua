-- Returns whether an inbox takes a copy of a user's command, see `has_room`.
--
-- KEYS   1  inbox
--        2  inboxExpiry
--        3  inboxSenders
-- ARGV   1 to 9  see `inbox.lua`
--        10  uid
-- Reply  1 or 0
return has_room(KEYS[1], KEYS[2], KEYS[3], ARGV[10]) and 1 or 0
