-- Appends messages to channels: each one that is no retry, and whose sender may send. Each for itself: what fails harms no other, and leaves nothing. All
-- that a topic is told goes out as one frame. Most of what a call costs are the texts it makes, byte by byte: Lua looks at each byte of a new one.
-- KEYS  1 the counter of ids; the other keys are in its slot, or all on one server
-- ARGV  1 now, 2 ms for which clientMsgNo is remembered, 3 retention (ms, 0: for ever), 4 how many messages a channel keeps (0: all),
--       5 1: a slot may be moving, 6 bucket of the counter, 7 number of messages; then of each channel
--         what its keys begin with, key, its topic in reach or '', number of its users in reach (0: a group, or users in other slots),
--         of each user uid, what the keys of the user's record begin with, what the user's keys begin with;
--         number of its messages; of each
--           sum of flags below, 32 times the refusal that was decided on before (0: none) and 256 times the number of its arguments, uid, record, extra;
--           with DEDUPE where it is remembered; with EXPIRES the Unix ms; with users in reach the Unix ms when it was accepted
-- Reply of each message in order: 0 appended, 1 a retry, 2 failed, 3 refused; messageId (refused: which refusal), messageSeq (0: not kept), pub (both
--       of a retry as of the first message); then the errors of those that failed, in order
-- Flags: KEEP 1, RED_DOT 2, DEDUPE 4, CHECK 8, EXPIRES 16
local APPENDED, RETRY, FAILED, REFUSED = 0, 1, 2, 3
local CHANNEL_ARGS, USER_ARGS, MESSAGE_ARGS = 4, 3, 4
local now_text, window, last_arg = ARGV[1], tonumber(ARGV[2]), #ARGV
now, retention, keeps = tonumber(now_text), tonumber(ARGV[3]), tonumber(ARGV[4])
local bucket, count = tonumber(ARGV[6]), tonumber(ARGV[7])

-- Where the arguments of the channel begin, number of its users in reach, whether it is open; whose sends were judged last, and how: nothing that a call
-- does changes what a sender may; the id that was given last.
local channel_at, users, is_open, judged, refusal, last_id

-- Commands of a script name their keys where Redis cannot know them beforehand. While a slot moves, some of them may be at another server: then it
-- says so here, before anything is written.
if ARGV[5] == '1' then
  local named, at = { KEYS[1] }, 8
  while at < last_arg do
    local base, key = ARGV[at], ARGV[at + 1]
    for _, part in ipairs({ 'head:', 'log:', 'exp:', 'dot:', 'perm:', 'temp:' }) do named[#named + 1] = base .. part .. key end
    named[#named + 1] = base .. 'due'
    at = at + CHANNEL_ARGS + tonumber(ARGV[at + 3]) * USER_ARGS + 1
    for _ = 1, tonumber(ARGV[at - 1]) do
      local flags = tonumber(ARGV[at])
      if flags % 8 >= 4 then named[#named + 1] = ARGV[at + MESSAGE_ARGS] end
      at = at + math.floor(flags / 256)
    end
  end
  redis.call('EXISTS', unpack(named))
end

-- Opens the channel. Of a personal one: whom to enter into whose `peers`.
local function open()
  local peers = nil
  if users > 0 then
    local one, other = channel_at + CHANNEL_ARGS, channel_at + CHANNEL_ARGS + (users - 1) * USER_ARGS
    peers = { ARGV[one + 2] .. 'peers', ARGV[other] }
    if users == 2 then peers[3], peers[4] = ARGV[other + 2] .. 'peers', ARGV[one] end
  end
  open_channel(ARGV[channel_at], ARGV[channel_at + 1], peers)
  is_open = true
end

local function judge(uid)
  if users == 0 then return group_refusal(c_info, c_base, c_key, uid) end
  local from, to = channel_at + CHANNEL_ARGS, channel_at + CHANNEL_ARGS + (users - 1) * USER_ARGS
  if ARGV[to] == uid then from, to = to, from end
  return person_refusal(ARGV[to + 1], '1:' .. ARGV[to], ARGV[from + 1], '1:' .. ARGV[from], uid)
end

-- What becomes of the message whose arguments begin at `at`: its part of the reply.
local function append(at, flags)
  local uid, more, remembers = ARGV[at + 1], at + MESSAGE_ARGS, nil
  if flags % 8 >= 4 then
    remembers, more = ARGV[more], more + 1
    local id, seq, pub = remembered(remembers, now, window)
    if id then return RETRY, id, seq, pub end
  end
  if not is_open then open() end
  local refused = math.floor(flags / 32) % 8
  if flags % 16 >= 8 then
    if judged ~= uid then refusal, judged = judge(uid), uid end
    refused = refusal
  end
  if refused ~= 0 then return REFUSED, refused, 0, 0 end
  last_id = id_behind(last_id or take_ids(KEYS[1], bucket, now, count), bucket, now)
  local seq, seq_text = 0, '0'
  if flags % 2 == 1 then
    local expires = nil
    if flags % 32 >= 16 then expires, more = ARGV[more], more + 1 end
    place_message(last_id, ARGV[at + 2], uid, flags % 4 >= 2, expires)
    seq, seq_text, c_newest_at = c_seq, c_seq_text, ARGV[more]
  else
    c_pub = c_pub + 1
  end
  if remembers then remember(remembers, window, now_text, int(last_id), seq_text, c_pub == seq and seq_text or int(c_pub)) end
  return APPENDED, last_id, seq, c_pub
end

local reply, size, errors, is_changed = {}, 0, {}, false
-- Frames of users' topics in pieces, by topic, and the topics: several channels may tell one.
local told, topics = {}, {}
local at = 8

while at < last_arg do
  channel_at, users, is_open, judged = at, tonumber(ARGV[at + 3]), false, nil
  at = at + CHANNEL_ARGS + users * USER_ARGS
  local messages, topic = tonumber(ARGV[at]), ARGV[channel_at + 2]
  local is_batch, is_channel_changed = messages > 1 or users > 0, false
  local frames, pieces = { BATCH_HEAD }, 1
  at = at + 1
  for _ = 1, messages do
    local flags = tonumber(ARGV[at])
    local is_done, what, id, seq, pub = pcall(append, at, flags)
    if not is_done then
      errors[#errors + 1] = type(what) == 'table' and what.err or tostring(what)
      what, id, seq, pub = FAILED, 0, 0, 0
    elseif what == APPENDED then
      is_channel_changed = true
      local record, extra = ARGV[at + 2], ARGV[at + 3]
      if is_batch then
        frames[pieces + 1], frames[pieces + 2], frames[pieces + 3] = batched_head(pub, id, seq, #record, #extra), record, extra
        pieces = pieces + 3
      else
        frames = message_frame(pub, id, seq, record, extra)
      end
    end
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = what, id, seq, pub
    size = size + 4
    at = at + math.floor(flags / 256)
  end
  if is_channel_changed then
    is_changed = true
    close_channel()
    for user = 0, users - 1 do
      local of_user = ARGV[channel_at + CHANNEL_ARGS + 2 + user * USER_ARGS] .. 't'
      local before = told[of_user]
      if not before then
        told[of_user], topics[#topics + 1] = { unpack(frames) }, of_user
      else
        for i = 2, pieces do before[#before + 1] = frames[i] end
      end
    end
    if topic ~= '' then redis.call('SPUBLISH', topic, is_batch and table.concat(frames) or frames) end
  end
end

-- A server that takes no writes now refuses the call as a whole: its client has to know.
if errors[1] and not is_changed then
  for _, text in ipairs(errors) do
    local code = string.match(text, '^%-?(%u+) ')
    if code and code ~= 'ERR' and code ~= 'WRONGTYPE' then return redis.error_reply(text) end
  end
end

for _, topic in ipairs(topics) do
  local frames = told[topic]
  if #frames == 4 then
    redis.call('SPUBLISH', topic, string.sub(frames[2], 5) .. frames[3] .. frames[4])
  else
    redis.call('SPUBLISH', topic, table.concat(frames))
  end
end
for i, text in ipairs(errors) do reply[size + i] = text end
return reply
