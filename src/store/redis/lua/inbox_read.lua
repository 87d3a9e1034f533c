-- Reads copies from an inbox (see `inbox_copies.lua`). Read-only.
--
-- ARGV   now        Unix ms
--        first_seq  first inboxSeq
--        limit      maximum number of copies
--        max_bytes  maximum payload bytes
-- Reply  inboxSeq, messageId and record of each copy
local inbox = KEYS[1]
local now, first_seq, limit, max_bytes = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
return inbox_copies(inbox, now, first_seq, limit, max_bytes)
