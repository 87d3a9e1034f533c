-- Reads copies from an inbox, oldest first, and skips expired copies. Placed in front of scripts.
--
-- Returns inboxSeq, messageId and record of each copy. The first copy is returned even if its
-- payload is larger than `max_bytes`.
local PAGE = 16
local function inbox_copies(inbox, now, from, limit, max_bytes)
  local copies, count, bytes = {}, 0, 0
  while count < limit do
    local page = redis.call('XRANGE', inbox, from, '+', 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      local fields = entry[2] -- fields of an entry: x, i, n, r, each followed by its value
      if tonumber(fields[2]) > now then
        bytes = bytes + tonumber(fields[6])
        if count == limit or (bytes > max_bytes and count > 0) then return copies end
        count = count + 1
        copies[#copies + 1] = string.match(entry[1], '^%d+')
        copies[#copies + 1] = fields[4]
        copies[#copies + 1] = fields[8]
      end
    end
    if #page < PAGE then break end
    from = '(' .. page[PAGE][1]
  end
  return copies
end
