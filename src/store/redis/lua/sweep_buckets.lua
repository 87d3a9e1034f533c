-- Finds the keys that a sweep must process. Read-only.
--
-- KEYS   the same key of each bucket. With ARGV, these keys must be sorted sets
-- ARGV   ranges of scores, two arguments each. A sorted set has work if one of its scores is in a
--        range. Without ARGV, a key has work if it exists.
-- Reply  positions (from 1) of the keys that have work
local has_ranges = #ARGV > 0
local found = {}

local function has_score(key)
  for at = 1, #ARGV, 2 do
    if redis.call('ZCOUNT', key, ARGV[at], ARGV[at + 1]) > 0 then return true end
  end
  return false
end

for at, key in ipairs(KEYS) do
  local has_work
  if has_ranges then has_work = has_score(key) else has_work = redis.call('EXISTS', key) == 1 end
  if has_work then found[#found + 1] = at end
end
return found
