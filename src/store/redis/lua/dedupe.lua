-- Dedupe records: what is remembered of a message or command under its clientMsgNo. A record is a
-- STRING `<Unix ms> <seq>-<messageId>`, followed by ` <pub>` if the publication number differs from
-- the seq. Seq and publication number of a command are 0. The stored time decides whether the
-- record still counts; the expiry of the key only frees its memory. `channel-names.ts` builds the
-- keys.
local DEDUPE_SPACE_MS = 60000 -- the clocks of nodes and Redis may differ

-- Returns id, seq and publication number of the first message from a record, nil if there is no
-- record within the window (ms).
local function first_of(value, now, window)
  if not value then return nil end
  local at, seq, id, pub = string.match(value, '^(%d+) (%d+)%-(%d+) ?(%d*)')
  if not at then error('a dedupe record has a newer format') end
  if now - tonumber(at) >= window then return nil end
  return tonumber(id), tonumber(seq), tonumber(pub) or tonumber(seq)
end

-- Reads a dedupe record. Returns as `first_of` does.
local function remembered(key, now, window) return first_of(redis.call('GET', key), now, window) end

local dedupe_keep -- time to live of the records as a string; the same for all records of a call

-- Writes a dedupe record. All arguments except `window` are strings.
--   at        Unix ms
--   place     `<seq>-<messageId>`
--   pub       publication number if it differs from the seq, else false or nil
--   is_first  true to write only if there is no record within the window; otherwise returns id, seq
--             and publication number of that record
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
