-- What a retry is answered (`dedupe`): STRING `<Unix ms> <messageSeq>-<messageId>`, behind it ` <pub>` where that is not the seq; seq and pub of a command
-- are 0. The stored time is the rule; that the key ends by itself reclaims its space.
-- `channel-names.ts` is the other half.
local DEDUPE_SPACE_MS = 60000 -- clocks of nodes and Redis may differ

-- id, seq and pub of the first one; nil: no call within the window (ms).
local function first_of(value, now, window)
  if not value then return nil end
  local at, seq, id, pub = string.match(value, '^(%d+) (%d+)%-(%d+) ?(%d*)')
  if not at then error('a remembered message of a newer format') end
  if now - tonumber(at) >= window then return nil end
  return tonumber(id), tonumber(seq), tonumber(pub) or tonumber(seq)
end

local function remembered(key, now, window) return first_of(redis.call('GET', key), now, window) end

local dedupe_keep -- for how long a value is kept, as text; all of a call are kept as long

-- at: Unix ms, then seq and id as `<messageSeq>-<messageId>`, all as text; pub as text where it is not the seq, else false.
local function remember(key, window, at, place, pub)
  dedupe_keep = dedupe_keep or int(window + DEDUPE_SPACE_MS)
  redis.call('SET', key, pub and at .. ' ' .. place .. ' ' .. pub or at .. ' ' .. place, 'PX', dedupe_keep)
end

-- Both in one: id, seq and pub of the first one; nil: this is the first, and it is remembered.
local function remember_first(key, window, at, place, pub)
  dedupe_keep = dedupe_keep or int(window + DEDUPE_SPACE_MS)
  local before = redis.call('SET', key, pub and at .. ' ' .. place .. ' ' .. pub or at .. ' ' .. place, 'NX', 'GET', 'PX', dedupe_keep)
  if not before then return nil end
  local id, seq, earlier = first_of(before, tonumber(at), window)
  if not id then remember(key, window, at, place, pub) end
  return id, seq, earlier
end
