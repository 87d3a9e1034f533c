-- Emits the events for changes to channels and their members. Placed in front of scripts, after
-- `events.lua`.

-- Emits the event for a channel that was created (`old_bits` is NO_RECORD) or changed. Emits
-- nothing if nothing changed. `steps/channel-events.ts` of the embedded store uses the same names.
local function emit_channel(old_bits, bits)
  local flags, fields = { 1, 'ban', DISBAND, 'disband', 4, 'send_ban', 8, 'allow_stranger', LARGE, 'large', 128, 'client_events' }, {}
  local is_new = old_bits == NO_RECORD
  for at = 1, #flags, 2 do
    local flag = bit.band(bits, flags[at])
    if is_new or flag ~= bit.band(old_bits, flags[at]) then
      -- The bit 128 means that clients may not send events.
      local value = (flag ~= 0) ~= (flags[at] == 128) and '1' or '0'
      fields[#fields + 1] = '"' .. flags[at + 1] .. '":' .. value
    end
  end
  if #fields == 0 then return end
  local event_type = CHANNEL_UPDATED
  if is_new then
    event_type = CHANNEL_CREATED
  elseif bit.band(bits, DISBAND) ~= 0 and bit.band(old_bits, DISBAND) == 0 then
    event_type = CHANNEL_DELETED
  end
  emit(event_type, '0', '{' .. table.concat(fields, ',') .. '}')
end

-- Emits the events for added or removed members. A list of more than MAX_EVENT_UIDS uids is split
-- into several events.
--   temporary  '1' for temporary members, else '0'
local function emit_members(event_type, uids, temporary)
  for first = 1, #uids, MAX_EVENT_UIDS do
    local page = {}
    for at = first, math.min(first + MAX_EVENT_UIDS - 1, #uids) do page[#page + 1] = uids[at] end
    emit(event_type, '0', '{"uids":' .. cjson.encode(page) .. ',"temp_subscriber":' .. temporary .. '}')
  end
end
