-- Runs the operations of a turn. This is the last file of the library. The generated table
-- `OPERATIONS` precedes it.
--
-- KEYS   on a Redis Cluster, any key in the slot that contains all keys of the call
-- ARGV   settings   now f64 (Unix ms); cluster u8 (1 if true, else 0); f64 each: maximum bytes,
--                   records and producers of a log, window for retries (ms), retention (ms, 0 means
--                   no limit), maximum messages of a channel (0 means no limit), maximum bytes of a
--                   stream
--        numbers    for each operation its code (index in OPERATIONS, u8) and its numbers
--        topic_end  suffix of topic names
--        then the texts of the operations
--        deadline   Unix ms
-- Reply  for each operation its reply, or the byte FAILED and an error; then, if Redis refused a
--        publication, the byte FAILED and the first such error

local function run_operations(replies)
  while number_at <= #numbers do
    local operation = OPERATIONS[byte(numbers, number_at)]
    number_at = number_at + 1
    reply_at = #replies + 1
    replies[reply_at] = operation()
  end
end

local FIRST_TEXT = 4

local function run_turn(_, arguments)
  local settings, deadline = arguments[1], arguments[#arguments]
  args, numbers, topic_end, text_at, number_at = arguments, arguments[2], arguments[3], FIRST_TEXT, 1
  if not call then take_globals() end
  local time = call('TIME')
  local exact_now = time[1] * 1000 + time[2] / 1000
  if exact_now > tonumber(deadline) then return redis.error_reply('LATE The call arrived after its deadline') end
  server_now = math.floor(exact_now)
  local cluster
  now, cluster, max_bytes, max_records, max_producers, window, retention, max_messages, max_stream_bytes = struct_unpack('>dBddddddd', settings)
  is_cluster = cluster == 1
  begin_streams()
  begin_logs()
  local replies = {}
  while number_at <= #numbers do -- `run_operations` ends when an operation fails
    local is_done, failure = pcall(run_operations, replies)
    if not is_done then
      forget_failed_log()
      replies[reply_at] = failed_reply(failure)
    end
  end
  write_pubs()
  local refusal = end_logs(replies)
  end_streams()
  if refusal then replies[#replies + 1] = failed_reply(refusal) end
  return replies
end

register_function('@LIBRARY_turn', run_turn)
-- Runs operations that free memory, even if Redis is full.
register_function({ function_name = '@LIBRARY_free', callback = run_turn, flags = { 'allow-oom' } })
register_function({ function_name = '@LIBRARY_read', callback = read_log, flags = { 'no-writes' } })
