-- Reads copies from an inbox (see `inbox_copies.lua`). Read-only.
--
-- KEYS   1  inbox
-- ARGV   1  now
--        2  first inboxSeq
--        3  maximum number of copies
--        4  maximum payload bytes
-- Reply  inboxSeq, messageId and record of each copy
return inbox_copies(KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]))
