-- Takes acknowledged copies out of an inbox. KEYS: inbox, inboxExpiry. ARGV: now, then inboxSeqs.
-- Reply: how many of them were there, expired ones left out.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
expire_copies(KEYS[1], KEYS[2], tonumber(ARGV[1]), 1000)
local ids = {}
for at = 2, #ARGV do ids[at - 1] = ARGV[at] .. '-0' end
local taken = redis.call('XDEL', KEYS[1], unpack(ids))
if taken > 0 and redis.call('EXISTS', KEYS[2]) == 1 then redis.call('ZREM', KEYS[2], unpack(ARGV, 2)) end
return taken
