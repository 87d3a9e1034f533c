-- Dedupe records: what is stored about a message or a broker command under its clientMsgNo. A
-- record is a STRING `<Unix ms> <seq>-<messageId>`, followed by ` <pub>` if the publication number
-- differs from the seq. The seq and the publication number of a command are 0. The stored time
-- decides whether the record is still valid; the expiry of the key only frees its memory.

-- Added to the time to live of a record, because the caller's time and the server's clock may
-- differ.
local DEDUPE_SPACE_MS = 60000

local function decode_dedupe(value, now, window)
  if not value then return nil end
  local written_ms, seq, id, pub = string.match(value, '^(%d+) (%d+)%-(%d+) ?(%d*)')
  if not written_ms then error('a dedupe record has a newer format') end
  if now - tonumber(written_ms) >= window then return nil end
  return tonumber(id), tonumber(seq), tonumber(pub) or tonumber(seq)
end

local function read_dedupe(key, now, window) return decode_dedupe(redis.call('GET', key), now, window) end

-- Time to live of dedupe records in ms, as a string. It is the same for all records of a call.
local dedupe_ttl

-- Writes a dedupe record. All arguments except `window` and `is_first` are strings.
--   place     `<seq>-<messageId>`
--   pub       publication number if it differs from the seq, else false or nil
--   is_first  true to write only if there is no record within the window. If there is one, its id,
--             seq and publication number are returned.
local function write_dedupe(key, window, now, place, pub, is_first)
  dedupe_ttl = dedupe_ttl or int(window + DEDUPE_SPACE_MS)
  local value = pub and now .. ' ' .. place .. ' ' .. pub or now .. ' ' .. place
  if is_first then
    local old_record = redis.call('SET', key, value, 'NX', 'GET', 'PX', dedupe_ttl)
    if not old_record then return nil end
    local first_id, first_seq, first_pub = decode_dedupe(old_record, tonumber(now), window)
    if first_id then return first_id, first_seq, first_pub end
  end
  redis.call('SET', key, value, 'PX', dedupe_ttl)
end
