-- Reads a user's group index. Placed in front of scripts.
--
-- Returns false if the index has exactly the ids that the caller knows, in the same order.
-- Otherwise, returns all ids. `known` is the SHA-1 (hexadecimal) of the ids that the caller knows,
-- each followed by a line break.
local function unknown_index(groups, known)
  local ids = redis.call('HKEYS', groups)
  ids[#ids + 1] = ''
  if redis.sha1hex(table.concat(ids, '\n')) == known then return false end
  ids[#ids] = nil
  return ids
end
