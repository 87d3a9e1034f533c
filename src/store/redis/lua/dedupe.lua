-- Reads and writes dedupe records, which store the first message or broker command with a
-- clientMsgNo. A record is a STRING `<Unix ms> <seq>-<messageId>`, followed by ` <pub>` if the
-- publication number differs from the seq, and by `#` and the hash of the payload if the hash is
-- known. The seq and the publication number of a command are 0. The stored time decides whether the
-- record is still valid; the expiry of the key only frees its memory.

-- Time added to a record's time to live, because the caller's time and the server's clock may
-- differ.
local DEDUPE_SPACE_MS = 60000

-- Stored in place of the payload hash for a stream's message (`STREAM_HASH` in
-- `store/payload-hash.ts`).
local STREAM_HASH = '\0\0\0\0\0\0\0\0'

-- Returns the id, seq and publication number of the message, and the hash of its payload, '' if the
-- hash is unknown. Returns nil if the record is no longer valid.
local function decode_dedupe(value, now, window)
  if not value then return nil end
  local written_ms, seq, id, pub, hash = string.match(value, '^(%d+) (%d+)%-(%d+) ?(%d*)#?(.*)$')
  if not written_ms then error('a dedupe record has a newer format') end
  if now - tonumber(written_ms) >= window then return nil end
  return tonumber(id), tonumber(seq), tonumber(pub) or tonumber(seq), hash
end

local function read_dedupe(key, now, window) return decode_dedupe(redis.call('GET', key), now, window) end

-- Returns true if the hash of the first payload is known and differs from the hash of this payload.
local function is_other_payload(first_hash, hash) return first_hash ~= '' and first_hash ~= hash end

-- Time to live of dedupe records in ms, as a string. It is the same for all records of a call.
local dedupe_ttl

-- Writes a dedupe record. `window` and `reuse` are numbers. The other arguments are strings unless
-- stated otherwise.
--   place     `<seq>-<messageId>`
--   pub       publication number if it differs from the seq, else false or nil
--   hash      of the payload
--   is_first  true to write only if there is no record within the window. If such a record exists,
--             its id, seq, publication number and hash are returned.
--   reuse     1 to replace an existing record whose payload hash differs, instead of returning it
local function write_dedupe(key, window, now, place, pub, hash, is_first, reuse)
  dedupe_ttl = dedupe_ttl or int(window + DEDUPE_SPACE_MS)
  local value = pub and now .. ' ' .. place .. ' ' .. pub .. '#' .. hash or now .. ' ' .. place .. '#' .. hash
  if is_first then
    local old_record = redis.call('SET', key, value, 'NX', 'GET', 'PX', dedupe_ttl)
    if not old_record then return nil end
    local first_id, first_seq, first_pub, first_hash = decode_dedupe(old_record, tonumber(now), window)
    if first_id and (reuse == 0 or not is_other_payload(first_hash, hash)) then return first_id, first_seq, first_pub, first_hash end
  end
  redis.call('SET', key, value, 'PX', dedupe_ttl)
end
