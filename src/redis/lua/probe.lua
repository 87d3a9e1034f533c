-- Runs commands on a key that does not exist otherwise, and reports those that fail. Deletes what
-- they leave behind.
--
-- KEYS  1     the key
-- ARGV        for each command: the number of its words, then the words
-- Reply       for each command that failed: its index, from 0, and the error
local failures = {}
local at, index = 1, 0
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  local reply = redis.pcall(unpack(ARGV, at + 1, last))
  if type(reply) == 'table' and reply.err then
    failures[#failures + 1] = index
    failures[#failures + 1] = reply.err
  end
  redis.pcall('DEL', KEYS[1])
  at, index = last + 1, index + 1
end
return failures
