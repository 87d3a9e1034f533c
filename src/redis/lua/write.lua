-- Runs one command that writes.
--
-- KEYS   key      the only key of the command
-- ARGV   command  name of the command
--        then the arguments of the command after its key
-- Reply  the reply of the command
local key = KEYS[1]
local command = ARGV[1]
local FIRST_ARGUMENT = 2
return redis.call(command, key, unpack(ARGV, FIRST_ARGUMENT))
