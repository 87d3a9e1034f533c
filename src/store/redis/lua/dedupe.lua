-- What a retry is answered (`dd`): STRING `<Unix ms> <messageId> <messageSeq> <pub>`, behind it ` <more>` where a step needs to keep more, such as a
-- command that is not with all its recipients yet (its seq and pub are 0). The stored time is the rule; that the key ends by itself reclaims its space.
-- `dedupe.ts` is the other half.
local DEDUPE_SPACE_MS = 60000 -- clocks of nodes and Redis may differ

-- id, seq, pub, more (nil: none) of the first one; nil: there is none within the window (ms).
local function remembered(key, now, window)
  local value = redis.call('GET', key)
  if not value then return nil end
  local at, id, seq, pub, rest = string.match(value, '^(%d+) (%d+) (%d+) (%d+)(.*)$')
  if not at then error('a remembered message of a newer format') end
  if now - tonumber(at) >= window then return nil end
  return tonumber(id), tonumber(seq), tonumber(pub), rest ~= '' and string.sub(rest, 2) or nil
end

local dedupe_keep -- for how long a value is kept, as text; all of a call are kept as long

-- now, id, seq, pub: as text, which most steps have already.
local function remember(key, window, now, id, seq, pub)
  dedupe_keep = dedupe_keep or int(window + DEDUPE_SPACE_MS)
  redis.call('SET', key, now .. ' ' .. id .. ' ' .. seq .. ' ' .. pub, 'PX', dedupe_keep)
end
