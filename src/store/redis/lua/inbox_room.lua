-- Checks whether an inbox has room for a copy of a user's command, see `has_room`. May remove
-- expired copies.
--
-- KEYS   1  inbox
--        2  inboxExpiry
--        3  inboxSenders
--        4  inboxShares
--        5  inboxOrder
-- ARGV   1 to 10  see `inbox.lua`
--        11  uid
--        12  bucket, see `user_feed.lua`
-- Reply  1  1 if the inbox has room, else 0
--        2  see `has_outbox`
local inbox = inbox_at(1, ARGV[11], ARGV[12], ARGV[10])
return { has_room(inbox) and 1 or 0, has_outbox(inbox) }
