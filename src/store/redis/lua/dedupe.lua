-- What a retry is answered (`dedupe`): STRING `<Unix ms> <messageSeq>-<messageId>`, behind it `
-- <pub>` where that is not the seq; seq and pub of a command are 0. The stored time is the rule;
-- that the key ends by itself reclaims its space. `channel-names.ts` is the other half.
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

-- at: Unix ms, then seq and id as `<messageSeq>-<messageId>`, all as text; pub as text where it is
-- not the seq, else false. is_first: only where none is remembered within the window, else returns
-- id, seq and pub of that one.
local function remember(key, window, at, place, pub, is_first)
  dedupe_keep = dedupe_keep or int(window + DEDUPE_SPACE_MS)
  local value = pub and at .. ' ' .. place .. ' ' .. pub or at .. ' ' .. place
  if is_first then
    local before = redis.call('SET', key, value, 'NX', 'GET', 'PX', dedupe_keep)
    if not before then return nil end
    local id, seq, earlier = first_of(before, tonumber(at), window)
    if id then return id, seq, earlier end
  end
  redis.call('SET', key, value, 'PX', dedupe_keep)
end
