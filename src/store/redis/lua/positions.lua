-- Decodes a user's value in the hash `positions`. Returns the seqs through which the user has read
-- and deleted, and the Unix ms of the user's last change. `own_seq` is the seq of the user's newest
-- message.
local function marks_of(position, own_seq)
  local read, deleted, head_then, changed = string.match(position, '^(%d+) (%d+) (%d+) (%d+)$')
  read, deleted = tonumber(read), tonumber(deleted)
  if own_seq > tonumber(head_then) then read = math.max(read, own_seq) end
  return math.max(read, deleted), deleted, tonumber(changed)
end
