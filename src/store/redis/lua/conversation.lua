-- One conversation of a user as it stands.
-- KEYS, ARGV: as of standing.lua; where an earlier step said to look on: 6 the head it saw, 7 the seq it said. Reply: as of its `conversation_reply`; nil: a group the user is no member of.
local s = standing()
if not s then return false end
local looks_on = ARGV[6] and tonumber(ARGV[6]) == s.head -- else there is a newer message, to begin from
return conversation_reply(s, looks_on and tonumber(ARGV[7]) or s.head)
