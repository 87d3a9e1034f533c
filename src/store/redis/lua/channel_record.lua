-- A channel's record as one number, in front of every step that reads or writes one. `channel-record.ts` is the other half.
-- ban 1, disband 2, sendBan 4, allowStranger 8, large 16; steps add 32 and 64.
local RECORD_FORMAT = 1
local NO_RECORD = -1
local DISBAND = 2

local function record_bits(key)
  local r = redis.call('HMGET', key, 'v', 'ban', 'disband', 'sendBan', 'allowStranger', 'large')
  if not r[1] then return NO_RECORD end
  if tonumber(r[1]) > RECORD_FORMAT then error('a channel record of a newer format: ' .. r[1]) end
  local bits = 0
  if r[2] == '1' then bits = bits + 1 end
  if r[3] == '1' then bits = bits + DISBAND end
  if r[4] == '1' then bits = bits + 4 end
  if r[5] == '1' then bits = bits + 8 end
  if r[6] == '1' then bits = bits + 16 end
  return bits
end

-- Whether members may be added.
local function is_open(key)
  local bits = record_bits(key)
  return bits ~= NO_RECORD and bit.band(bits, DISBAND) == 0
end
