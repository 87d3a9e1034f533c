-- State of a call, and functions that all operations use. The first file of the library.
--
-- Redis compiles the library once and keeps its locals, also after an error, so each call sets them
-- at its beginning. While Redis loads a library, its code sees no globals but `redis`: the locals
-- for functions of Lua are set at the first call.
local call, byte, struct_pack, struct_unpack, struct_size, bxor, rol

local args -- arguments of the call
local numbers -- bytes of the operations (argument 2)
local text_at -- index in `args` of the next text
local number_at -- index in `numbers` of the next byte
local now -- Unix ms
local is_cluster -- true if other keys of the slot may be at another server
local topic_end -- end of the names of topics, which names the database

local MISSING, DELETED = 1, 2 -- verdicts that several operations have
local FAILED = 255 -- first byte of the reply of an operation that failed, before the error

local function take_functions()
  call, byte, bxor, rol = redis.call, string.byte, bit.bxor, bit.rol
  struct_pack, struct_unpack, struct_size = struct.pack, struct.unpack, struct.size
end

-- Formats an integer below 2^53 without an exponent. Redis formats numbers more slowly.
local function int(n) return string.format('%d', n) end

-- Takes `count` texts of an operation. An operation takes all of its texts and numbers before
-- anything else, so that the next one can run after an error.
local function take_texts(count)
  local at = text_at
  text_at = at + count
  return unpack(args, at, at + count - 1)
end

-- Takes the numbers of an operation. `format` is one of `struct`.
local function take_numbers(format)
  local at = number_at
  number_at = at + struct_size(format)
  return struct_unpack(format, numbers, at)
end

-- Returns true if `text` is higher than `other`, compared by bytes. The operators of Lua compare by
-- the locale of the server.
local function is_higher(text, other)
  for at = 1, math.min(#text, #other) do
    local a, b = byte(text, at), byte(other, at)
    if a ~= b then return a > b end
  end
  return #text > #other
end
