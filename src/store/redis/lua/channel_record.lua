-- A channel's record: one number in its head (field `info`), 256 times its format and the bits
-- below; in front of every step that reads or writes one. `channel-record.ts` is the other half.
-- ban 1, disband 2, sendBan 4, allowStranger 8, large 16; steps add 32 and 64.
local RECORD_FORMAT = 1
local FORMAT_UNIT = 256
local NO_RECORD = -1
local DISBAND = 2
local LARGE = 16
-- Which lists of the channel are not empty (field `lists` of its head; absent: none), also where
-- there is no record.
local HAS_DENYLIST = 1
local HAS_ALLOWLIST = 2

-- The bits of the field; NO_RECORD where it is absent.
local function bits_of(info)
  if not info then return NO_RECORD end
  local number = tonumber(info)
  if not number or number >= (RECORD_FORMAT + 1) * FORMAT_UNIT then error('a channel record of a newer format: ' .. info) end
  return number % FORMAT_UNIT
end

local function record_bits(head) return bits_of(redis.call('HGET', head, 'info')) end

local function write_record(head, bits) redis.call('HSET', head, 'info', RECORD_FORMAT * FORMAT_UNIT + bits) end

-- Whether members may be added.
local function is_open(head)
  local bits = record_bits(head)
  return bits ~= NO_RECORD and bit.band(bits, DISBAND) == 0
end
