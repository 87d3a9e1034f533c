-- State of a call, and functions that all operations can use. This is the first file of the
-- library.
--
-- Redis compiles the library once and keeps its locals, even after an error. Each call therefore
-- sets them first. While Redis loads a library, the only global is `redis`. The first call
-- therefore copies the globals into locals, which are also faster.
local register_function = redis.register_function

local function globals()
  return redis, struct, cmsgpack, cjson, bit, string, table, math, pcall, error, type, tonumber, tostring, ipairs, unpack
end

local redis, struct, cmsgpack, cjson, bit, string, table, math, pcall, error, type, tonumber, tostring, ipairs, unpack
local call, byte, struct_pack, struct_unpack, struct_size -- functions that most operations use

local args -- arguments of the call
local numbers -- codes and numbers of the operations (argument 2)
local text_at -- index in `args` of the next string argument (text)
local number_at -- index in `numbers` of the next byte
local reply_at -- index of the operation in the call
local now -- Unix ms on the server's clock, as the caller estimates it
local server_now -- Unix ms on the clock of the server
local is_cluster -- true on a Redis Cluster, where the keys of a migrating slot are on two servers
local topic_end -- suffix of all topic names: '' for database 0, else `@` and the database number
-- Settings: time for which retries are recognised (ms), maximum age of messages (ms, 0 means no
-- limit), maximum number of messages in a channel (0 means no limit), and maximum number of bytes
-- of a stream
local window, retention, max_messages, max_stream_bytes
local max_bytes, max_records, max_producers -- limits of logs, see `LogLimits`

local FAILED = 255 -- first byte of the reply of an operation that failed, before the error

local function take_globals()
  redis, struct, cmsgpack, cjson, bit, string, table, math, pcall, error, type, tonumber, tostring, ipairs, unpack = globals()
  call, byte, struct_pack, struct_unpack, struct_size = redis.call, string.byte, struct.pack, struct.unpack, struct.size
end

-- Reads the next `count` texts of the current operation. An operation must read all of its texts
-- and numbers before it does anything else. Otherwise, if an operation fails, the next operation
-- would read the arguments that the failed operation has left unread.
local function take_texts(count)
  local at = text_at
  text_at = at + count
  return unpack(args, at, at + count - 1)
end

-- Reads the next numbers of the current operation. `format` is a format string for `struct`.
local function take_numbers(format)
  local at = number_at
  number_at = at + struct_size(format)
  return struct_unpack(format, numbers, at)
end

-- Returns true if `text` is higher than `other`. Compares bytes, because Lua's operators compare
-- strings by the server's locale.
local function is_higher(text, other)
  for at = 1, math.min(#text, #other) do
    local a, b = byte(text, at), byte(other, at)
    if a ~= b then return a > b end
  end
  return #text > #other
end

local function failed_reply(failure)
  return string.char(FAILED) .. (type(failure) == 'table' and failure.err or tostring(failure))
end
