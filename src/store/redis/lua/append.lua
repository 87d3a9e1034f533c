-- Appends messages to channels: each one that is no retry, and whose sender may send. Each for itself: what fails harms no other, and leaves nothing but a
-- later time in `peers`. All that a topic gets goes out at once. Most of what a call costs are the texts it makes, byte by byte: Lua looks at each byte of a new one.
-- KEYS  1 the counter of ids; the other keys are in its slot, or all on one server
-- ARGV  1 now, 2 ms for which clientMsgNo is remembered, 3 retention (ms, 0: for ever), 4 how many messages a channel keeps (0: all),
--       5 1: a slot may be moving, 6 bucket of the counter, 7 number of messages; then of each channel
--         what its keys begin with, key, its topic in reach or '', number of its users in reach (0: a group, or users in other slots),
--         of each user uid, what the keys of the user's record begin with, what the user's keys begin with;
--         number of its messages; of each
--           sum of flags below, 32 times the refusal that was decided on before (0: none) and 256 times the number of its arguments, uid, record, extra;
--           with DEDUPE where it is remembered; with EXPIRES the Unix ms
-- Reply of each message in order: 0 appended, 1 a retry, 2 failed, 3 refused; messageId (refused: which refusal), messageSeq (0: not kept), pub (both
--       of a retry as of the first message); then the errors of those that failed, in order
-- Flags: KEEP 1, RED_DOT 2, DEDUPE 4, CHECK 8, EXPIRES 16
local APPENDED = 0
local RETRY = 1
local FAILED = 2
local REFUSED = 3
local CHANNEL_ARGS = 4
local USER_ARGS = 3
local MESSAGE_ARGS = 4
local ARGV, window, last_arg = ARGV, tonumber(ARGV[2]), #ARGV
now, retention, keeps = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local bucket = tonumber(ARGV[6])

-- Commands of a script name their keys where Redis cannot know them beforehand. While a slot moves, some of them may be at another server: then it
-- says so here, before anything is written.
if ARGV[5] == '1' then
  local named, at = { KEYS[1] }, 8
  while at < last_arg do
    local base, key = ARGV[at], ARGV[at + 1]
    for _, part in ipairs({ 'head:', 'log:', 'expiry:', 'redDots:', 'permanent:', 'temporary:' }) do named[#named + 1] = base .. part .. key end
    named[#named + 1] = base .. 'due'
    at = at + CHANNEL_ARGS + tonumber(ARGV[at + 3]) * USER_ARGS + 1
    for _ = 1, tonumber(ARGV[at - 1]) do
      local flags = tonumber(ARGV[at])
      if flags % 8 >= 4 then named[#named + 1] = ARGV[at + MESSAGE_ARGS] end
      at = at + math.floor(flags / 256)
    end
  end
  call('EXISTS', unpack(named))
end

-- The open channel: where its arguments begin, number of its users in reach, whether its head was read; of its messages how many are left, whose
-- sends were judged last, and how: nothing that a call does changes what a sender may.
local channel_at, users, is_open, left, judged, refusal
-- Where the arguments of the message in turn begin, and what its flags say; the flags read last, which mostly are its own; the id given last.
local at, stored, red_dot, dedupe, check, expiring, decided, arity, flags_text, last_id = 8
-- Where the message in turn is remembered already, until it is placed.
local noted
-- Of each message what became of it, and what the topics of its channel get.
local reply, size, frames, pieces = {}, 0, nil, 0

-- Opens the channel. Of a personal one: whom to enter into whose `peers`.
local function open()
  local peers, one, other = nil, channel_at + CHANNEL_ARGS, channel_at + CHANNEL_ARGS + USER_ARGS
  if users == 1 then peers = { ARGV[one + 2] .. 'peers', ARGV[one] } end
  if users == 2 then peers = { ARGV[one + 2] .. 'peers', ARGV[other], ARGV[other + 2] .. 'peers', ARGV[one] } end
  open_channel(ARGV[channel_at], ARGV[channel_at + 1], peers)
  is_open = true
end

local function judge(uid)
  if users == 0 then return group_refusal(c_info, c_base, c_key, uid) end
  local from, to = channel_at + CHANNEL_ARGS, channel_at + CHANNEL_ARGS + (users - 1) * USER_ARGS
  if ARGV[to] == uid then from, to = to, from end
  return person_refusal(ARGV[to + 1], '1:' .. ARGV[to], ARGV[from + 1], '1:' .. ARGV[from], uid)
end

local function answer(what, id, seq, pub)
  reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = what, id, seq, pub
  size, at, left = size + 4, at + arity, left - 1
end

-- Appends the message in turn and those behind it, as long as nothing fails.
local function append()
  while left > 0 do
    local text = ARGV[at]
    if text ~= flags_text then
      local flags = tonumber(text)
      stored, red_dot, dedupe, check, expiring = flags % 2 == 1, flags % 4 >= 2, flags % 8 >= 4, flags % 16 >= 8, flags % 32 >= 16
      decided, arity, flags_text = math.floor(flags / 32) % 8, math.floor(flags / 256), text
    end
    if not is_open then open() end
    local uid, record, refused, first_id, first_seq, first_pub = ARGV[at + 1], ARGV[at + 2], decided, nil, nil, nil
    if check then
      if judged ~= uid then refusal, judged = judge(uid), uid end
      refused = refusal
    end
    if refused ~= 0 then
      if dedupe then first_id, first_seq, first_pub = remembered(ARGV[at + MESSAGE_ARGS], now, window) end
    else
      local id, seq, pub = id_behind(last_id or take_ids(KEYS[1], bucket, now, tonumber(ARGV[7])), bucket, now), stored and c_seq + 1 or 0, c_pub + 1
      local place = string.format('%d-%d', seq, id)
      last_id = id
      if dedupe then
        first_id, first_seq, first_pub = remember_first(ARGV[at + MESSAGE_ARGS], window, ARGV[1], place, pub ~= seq and int(pub))
        if not first_id then noted = ARGV[at + MESSAGE_ARGS] end
      end
      if not first_id then
        if stored then
          place_message(id, place, record, uid, red_dot, expiring and ARGV[at + arity - 1])
        else
          c_pub = pub
        end
        noted = nil
        local head = message_head(pub, id, seq)
        if pieces == 0 then
          frames = { head, record, ARGV[at + 3] }
        else
          frames[pieces + 1], frames[pieces + 2], frames[pieces + 3] = head, record, ARGV[at + 3]
        end
        pieces = pieces + 3
        answer(APPENDED, id, seq, pub)
      end
    end
    if first_id then
      answer(RETRY, first_id, first_seq, first_pub)
    elseif refused ~= 0 then
      answer(REFUSED, refused, 0, 0)
    end
  end
end

local errors, is_changed = {}, false
-- What users' topics get, the topics in the order that they were met, and those that several channels tell.
local of_topic, topics, is_shared = {}, {}, {}

while at < last_arg do
  channel_at, users, is_open, judged = at, tonumber(ARGV[at + 3]), false, nil
  at = at + CHANNEL_ARGS + users * USER_ARGS
  left, at, pieces = tonumber(ARGV[at]), at + 1, 0
  while left > 0 do
    local is_done, what = pcall(append)
    if not is_done then
      errors[#errors + 1] = type(what) == 'table' and what.err or tostring(what)
      if noted then call('DEL', noted) end
      noted = nil
      answer(FAILED, 0, 0, 0)
    end
  end
  if pieces > 0 then
    is_changed = true
    close_channel()
    for user = 0, users - 1 do
      local of_user = ARGV[channel_at + CHANNEL_ARGS + 2 + user * USER_ARGS] .. 'topic'
      local before = of_topic[of_user]
      if not before then
        of_topic[of_user], topics[#topics + 1] = frames, of_user
      else
        if not is_shared[of_user] then
          before, is_shared[of_user] = { unpack(before) }, true
          of_topic[of_user] = before
        end
        for i = 1, pieces do before[#before + 1] = frames[i] end
      end
    end
    local topic = ARGV[channel_at + 2]
    if topic ~= '' then call('SPUBLISH', topic, messages_frame(frames)) end
  end
end

-- A server that takes no writes now refuses the call as a whole: its client has to know.
if errors[1] and not is_changed then
  for _, text in ipairs(errors) do
    local code = string.match(text, '^%-?(%u+) ')
    if code and code ~= 'ERR' and code ~= 'WRONGTYPE' then return redis.error_reply(text) end
  end
end

-- Two users of one channel get the same.
local last_frames, last_packed
for _, topic in ipairs(topics) do
  if of_topic[topic] ~= last_frames then
    last_frames = of_topic[topic]
    last_packed = messages_frame(last_frames)
  end
  call('SPUBLISH', topic, last_packed)
end
for i, text in ipairs(errors) do reply[size + i] = text end
return reply
