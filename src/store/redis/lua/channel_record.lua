-- Reads and writes channel records (`channel-record.ts` is the TypeScript counterpart).
--
-- A record is one number in the head (field `info`): 256 times its format plus these bits. Script
-- replies may also contain the bits 32 and 64 (`channel_facts.lua`).
--    1  ban
--    2  disband
--    4  sendBan
--    8  allowStranger
--   16  large
--  128  clients may not send events
local RECORD_FORMAT = 1
local FORMAT_UNIT = 256
local NO_RECORD = -1
local DISBAND = 2
local LARGE = 16
-- Bits of the field `lists` of the head. A bit is set if the list is not empty. The field is absent
-- if both lists are empty. A channel without a record may have lists too.
local HAS_DENYLIST = 1
local HAS_ALLOWLIST = 2

local function bits_of(info)
  if not info then return NO_RECORD end
  local number = tonumber(info)
  if not number or number >= (RECORD_FORMAT + 1) * FORMAT_UNIT then error('a channel record has a newer format: ' .. info) end
  return number % FORMAT_UNIT
end

local function record_bits(head) return bits_of(redis.call('HGET', head, 'info')) end

local function write_record(head, bits) redis.call('HSET', head, 'info', RECORD_FORMAT * FORMAT_UNIT + bits) end

local function is_open(head)
  local bits = record_bits(head)
  return bits ~= NO_RECORD and bit.band(bits, DISBAND) == 0
end
