-- Appends messages to channels: each one that is no retry, and whose sender may send. Each for itself: what fails harms no other, and leaves nothing. All
-- that a topic is told goes out as one frame. Most of what a call costs are the texts and tables it makes, and its commands.
-- KEYS  1 the counter of ids; the other keys are in its slot, or all on one server
-- ARGV  1 now, 2 ms for which clientMsgNo is remembered, 3 retention (ms, 0: for ever), 4 how many messages a channel keeps (0: all),
--       5 1: a slot may be moving, 6 bucket of the counter, 7 number of messages; then of each channel
--         what its keys begin with, key, its topic in reach or '', number of its users in reach (0: a group, or users in other slots),
--         of each user uid, what the keys of the user's record begin with, what the user's keys begin with;
--         number of its messages; of each
--           sum of flags below and CODE times the refusal that was decided on before (0: none), uid, record, extra; with DEDUPE where it is remembered;
--           with EXPIRES the Unix ms; with users in reach the Unix ms when it was accepted
-- Reply of each message in order: 0 appended, 1 a retry, 2 failed, 3 refused; messageId (refused: which refusal), messageSeq (0: not kept), pub (both
--       of a retry as of the first message); then the errors of those that failed, in order
-- Flags: KEEP 1, RED_DOT 2, DEDUPE 4, CHECK 8, EXPIRES 16, CODE 32
local CODE = 32
local APPENDED, RETRY, FAILED, REFUSED = 0, 1, 2, 3
local CHANNEL_ARGS, USER_ARGS, MESSAGE_ARGS = 4, 3, 4
local now_text, window, last_arg = ARGV[1], tonumber(ARGV[2]), #ARGV
now, retention, keeps = tonumber(now_text), tonumber(ARGV[3]), tonumber(ARGV[4])
local count = tonumber(ARGV[7])
local ids = open_ids(KEYS[1], tonumber(ARGV[6]), count)

-- Where the arguments of the channel begin, number of its users in reach, whether it is open; whose sends were judged last, and how: nothing that a call
-- does changes what a sender may.
local channel_at, users, is_open, judged, refusal

local function args_of(flags)
  local args = MESSAGE_ARGS
  if flags % 8 >= 4 then args = args + 1 end
  if flags % 32 >= 16 then args = args + 1 end
  return users > 0 and args + 1 or args
end

-- Commands of a script name their keys where Redis cannot know them beforehand. While a slot moves, some of them may be at another server: then it
-- says so here, before anything is written.
local function touch_keys()
  local named, at = { KEYS[1] }, 8
  while at < last_arg do
    local base, key = ARGV[at], ARGV[at + 1]
    for _, part in ipairs({ 'head:', 'log:', 'exp:', 'dot:', 'perm:', 'temp:' }) do named[#named + 1] = base .. part .. key end
    named[#named + 1] = base .. 'due'
    users = tonumber(ARGV[at + 3])
    at = at + CHANNEL_ARGS + users * USER_ARGS + 1
    for _ = 1, tonumber(ARGV[at - 1]) do
      local flags = tonumber(ARGV[at])
      if flags % 8 >= 4 then named[#named + 1] = ARGV[at + MESSAGE_ARGS] end
      at = at + args_of(flags)
    end
  end
  redis.call('EXISTS', unpack(named))
end

-- Whom to enter into whose `peers`.
local function peers_of()
  if users == 0 then return nil end
  local one, other = channel_at + CHANNEL_ARGS, channel_at + CHANNEL_ARGS + (users - 1) * USER_ARGS
  local peers = { ARGV[one + 2] .. 'peers', ARGV[other] }
  if users == 2 then peers[3], peers[4] = ARGV[other + 2] .. 'peers', ARGV[one] end
  return peers
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
  if not is_open then
    open_channel(ARGV[channel_at], ARGV[channel_at + 1], peers_of())
    is_open = true
  end
  local refused = math.floor(flags / CODE)
  if flags % 16 >= 8 then
    if judged ~= uid then refusal, judged = judge(uid), uid end
    refused = refusal
  end
  if refused ~= 0 then return REFUSED, refused, 0, 0 end
  local id, expires = take_id(ids, now), nil
  if flags % 32 >= 16 then expires, more = ARGV[more], more + 1 end
  if flags % 2 == 0 then
    take_pub()
    if remembers then remember(remembers, window, now_text, int(id), '0', int(c_pub)) end
    return APPENDED, id, 0, c_pub
  end
  place_message(id, ARGV[at + 2], uid, flags % 4 >= 2, expires)
  c_newest_at = ARGV[more]
  if remembers then remember(remembers, window, now_text, c_id_text, c_seq_text, c_pub == c_seq and c_seq_text or int(c_pub)) end
  return APPENDED, id, c_seq, c_pub
end

if ARGV[5] == '1' then touch_keys() end

local reply, size, errors, is_changed = {}, 0, {}, false
-- Frames of users' topics in pieces, by topic, and the topics: several channels may tell one.
local told, topics = {}, {}
local at = 8

while at < last_arg do
  channel_at, users, is_open, judged = at, tonumber(ARGV[at + 3]), false, nil
  at = at + CHANNEL_ARGS + users * USER_ARGS
  local messages, topic = tonumber(ARGV[at]), ARGV[channel_at + 2]
  local frames, is_batch, appended = {}, messages > 1 or users > 0, 0
  at = at + 1
  for _ = 1, messages do
    local flags = tonumber(ARGV[at])
    local is_done, what, id, seq, pub = pcall(append, at, flags)
    if not is_done then
      errors[#errors + 1] = type(what) == 'table' and what.err or tostring(what)
      what, id, seq, pub = FAILED, 0, 0, 0
    elseif what == APPENDED then
      appended = appended + 1
      local record, extra, last = ARGV[at + 2], ARGV[at + 3], #frames
      if is_batch then
        frames[last + 1], frames[last + 2], frames[last + 3] = batched_head(pub, id, seq, #record, #extra), record, extra
      else
        frames[1] = message_frame(pub, id, seq, record, extra)
      end
    end
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = what, id, seq, pub
    size = size + 4
    at = at + args_of(flags)
  end
  if appended > 0 then
    is_changed = true
    close_channel()
    for user = 0, users - 1 do
      local of_user = ARGV[channel_at + CHANNEL_ARGS + 2 + user * USER_ARGS] .. 't'
      local before = told[of_user]
      if not before then
        told[of_user], topics[#topics + 1] = { BATCH_HEAD, unpack(frames) }, of_user
      else
        for i = 1, #frames do before[#before + 1] = frames[i] end
      end
    end
    if topic ~= '' then redis.call('SPUBLISH', topic, is_batch and BATCH_HEAD .. table.concat(frames) or frames[1]) end
  end
end

close_ids(ids)

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
