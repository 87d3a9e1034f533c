-- Reads the ids in a user's group index, unless the caller knows them already. Read-only.
--
-- KEYS   1  groups
-- ARGV   1  SHA-1 (hexadecimal) of the ids that the caller knows, with a line break after each
-- Reply  nil if the index has exactly the known ids, in the same order, else all ids
local ids = redis.call('HKEYS', KEYS[1])
ids[#ids + 1] = ''
if redis.sha1hex(table.concat(ids, '\n')) == ARGV[1] then return false end
ids[#ids] = nil
return ids
