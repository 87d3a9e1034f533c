-- Runs commands on a key that is not used for anything else, and reports the commands that fail.
-- Deletes the key after each command.
--
-- ARGV        for each command: the number of its words, then the words
-- Reply       for each command that failed: its index, from 0, and the error
local key = KEYS[1]
local failures = {}
local at, index = 1, 0
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  local reply = redis.pcall(unpack(ARGV, at + 1, last))
  if type(reply) == 'table' and reply.err then
    failures[#failures + 1] = index
    failures[#failures + 1] = reply.err
  end
  redis.pcall('DEL', key)
  at, index = last + 1, index + 1
end
return failures
