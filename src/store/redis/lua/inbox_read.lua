-- Reads copies from an inbox, oldest first, without expired ones. Read-only.
--
-- KEYS   1  inbox
-- ARGV   1  now
--        2  first inboxSeq
--        3  maximum number of copies
--        4  maximum payload bytes; the first copy is returned even if it is larger
-- Reply  inboxSeq, messageId and record of each copy
local PAGE = 16
local now, limit, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local copies, count, bytes = {}, 0, 0
local from = ARGV[2]
while count < limit do
  local page = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', PAGE)
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
