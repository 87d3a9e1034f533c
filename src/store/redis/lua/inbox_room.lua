-- Checks whether an inbox has room for a copy of a user's command, see `has_room`. May remove
-- expired copies.
--
-- KEYS   see `inbox_of` in `inbox.lua`
-- ARGV   see `copy_of` in `inbox.lua`, then
--        uid
--        bucket  see `user_feed.lua`
-- Reply  1  1 if the inbox has room, else 0
--        2  see `has_outbox`
local copy = copy_of(unpack(ARGV, 1, COPY_ARGS))
local uid, bucket = ARGV[11], ARGV[12]
local inbox = inbox_of(uid, bucket, copy.event_ids, unpack(KEYS))
return { has_room(inbox, copy) and 1 or 0, has_outbox(inbox) }
