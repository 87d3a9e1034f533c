-- Appends messages to channels: each one that is no retry, and whose sender may send. Each for
-- itself: what fails harms no other, and leaves nothing but a later time in `peers`. All that a
-- topic gets goes out at once. What a call of one message costs most are the functions, the locals
-- that functions share, the arguments and the texts: Redis makes all of them anew at each call. So
-- state is in lists that functions are given, and numbers are no texts.
-- KEYS  1 the counter of ids; the other keys are in its slot, or all on one server
-- ARGV  1 numbers, big-endian: six doubles (now, ms for which clientMsgNo is remembered, retention
--     in ms (0: for ever), how many messages a channel keeps (0: all), bucket of the counter, number
--     of messages), a byte (1: a slot may be moving), then the bytes in [] below, in turn;
--   then of each channel [number of its users in reach (0: a group, or users in other slots), number
--     of its messages]: what its keys begin with, key, its topic in reach or '', of each user uid,
--     what the keys of the user's record begin with, what the user's keys begin with;
--   of each of its messages [1 or 0: keep, red dot, remember, judge (1 to 4: `permission.lua`), expires; the
--     refusal that was decided on before (0: none)]: uid, record, extra; where it is remembered, if it is; the Unix
--     ms, if it expires
-- Reply of each message in order 26 bytes: version, what became of it (1 appended, 2 a retry, 3
--   refused, 4 failed), then as doubles its pub, messageId and messageSeq (0: not kept), of a retry
--   those of the first message; refused: the refusal in place of the pub. Where a personal channel's
--   users are in other slots, then of each message a double: id of the channel's message before it
--   (0: not known). Where some failed, a list of these bytes and of the errors, in order
local RETRY = 2
local REFUSED = 3
local FAILED = 4
local HEADER_BYTES = 49
local CHANNEL_ARGS = 3
local USER_ARGS = 3
local CHANNEL_BYTES = 2
local MESSAGE_ARGS = 3
local MESSAGE_BYTES = 6
-- How far the call is (`s`), a list as well.
local AT = 1 -- where the message in turn begins in ARGV
local BYTE = 2 -- and in the bytes
local LEFT = 3 -- how many messages its channel has left
local CHANNEL = 4 -- when it was opened
local FRAMES = 5 -- what the channel's topics get
local LAST_ID = 6 -- the one given last
local NOTED = 7 -- where the message in turn is remembered already, until it is placed
local BEFORES = 8 -- by place in the reply the ids of messages before, if there are some

-- An appended message is answered by what stands in front of it on its topic.
local function answer(what, pub, id, seq) return struct.pack('>BBddd', 2, what, pub, id, seq) end

local now, window, retention, keeps, bucket, most, is_moving = struct.unpack('>ddddddB', ARGV[1])

-- Commands of a script name their keys where Redis cannot know them beforehand. While a slot moves,
-- some of them may be at another server: then it says so here, before anything is written.
if is_moving == 1 then
  local named, at, byte = { KEYS[1] }, 2, HEADER_BYTES + 1
  while ARGV[at] do
    local base, key = ARGV[at], ARGV[at + 1]
    for _, part in ipairs({ 'head:', 'log:', 'expiry:', 'redDots:', 'permanent:', 'temporary:', 'denylist:', 'allowlist:' }) do named[#named + 1] = base .. part .. key end
    named[#named + 1] = base .. 'due'
    local users, messages = string.byte(ARGV[1], byte, byte + 1)
    at, byte = at + CHANNEL_ARGS + users * USER_ARGS, byte + CHANNEL_BYTES
    for _ = 1, messages do
      local _, _, dedupe, _, expires = string.byte(ARGV[1], byte, byte + 4)
      if dedupe == 1 then named[#named + 1] = ARGV[at + MESSAGE_ARGS] end
      at, byte = at + MESSAGE_ARGS + dedupe + expires, byte + MESSAGE_BYTES
    end
  end
  redis.call('EXISTS', unpack(named))
end

-- Appends the message in turn and those behind it of its channel, as long as nothing fails.
-- first: where the channel's arguments begin; users: how many of its users are in reach.
local function append(s, reply, first, users, now, window, bucket, most, is_limited)
  local ARGV, byte, channel, frames, answered = ARGV, string.byte, s[CHANNEL], s[FRAMES], #reply
  local pieces, judged, judged_how, refusal, now_text = frames and #frames or 0, nil, nil, nil, nil
  while s[LEFT] > 0 do
    local at = s[AT]
    s[LEFT] = s[LEFT] - 1
    local stored, red_dot, dedupe, check, expiring, refused = byte(ARGV[1], s[BYTE], s[BYTE] + 5)
    s[AT], s[BYTE] = at + MESSAGE_ARGS + dedupe + expiring, s[BYTE] + MESSAGE_BYTES
    if not channel then
      local peers, one, other = false, first + CHANNEL_ARGS, first + CHANNEL_ARGS + USER_ARGS
      if users == 1 then peers = { int(now), ARGV[one + 2] .. 'peers', ARGV[one] } end
      if users == 2 then peers = { int(now), ARGV[one + 2] .. 'peers', ARGV[other], ARGV[other + 2] .. 'peers', ARGV[one] } end
      channel = open_channel(ARGV[first], ARGV[first + 1], peers, is_limited, users == 0 and ARGV[first + 2] == '')
      s[CHANNEL] = channel
    end
    local uid, record, first_id, first_seq, first_pub = ARGV[at], ARGV[at + 1], nil, nil, nil
    if check > 0 then
      if judged ~= uid or judged_how ~= check then
        if users == 0 then
          refusal = group_refusal(channel[INFO], channel[LISTS], channel[BASE], channel[KEY], uid, check)
        else
          local from, to = first + CHANNEL_ARGS, first + CHANNEL_ARGS + (users - 1) * USER_ARGS
          if ARGV[to] == uid then from, to = to, from end
          refusal = person_refusal(ARGV[to + 1], '1:' .. ARGV[to], ARGV[from + 1], '1:' .. ARGV[from], uid, check)
        end
        judged, judged_how = uid, check
      end
      refused = refusal
    end
    if refused > 0 then
      if dedupe == 1 then first_id, first_seq, first_pub = remembered(ARGV[at + MESSAGE_ARGS], now, window) end
      if not first_id then reply[answered + 1] = answer(REFUSED, refused, 0, 0) end
    else
      local last_id = s[LAST_ID]
      local id = last_id and id_behind(last_id, bucket, now) or take_ids(KEYS[1], bucket, now, most)
      local seq, pub = stored == 1 and channel[SEQ] + 1 or 0, channel[PUB] + 1
      local place = string.format('%d-%d', seq, id)
      s[LAST_ID] = id
      if dedupe == 1 then
        now_text = now_text or int(now)
        first_id, first_seq, first_pub = remember(ARGV[at + MESSAGE_ARGS], window, now_text, place, pub ~= seq and int(pub), true)
        if not first_id then s[NOTED] = ARGV[at + MESSAGE_ARGS] end
      end
      if not first_id then
        if stored == 1 then
          place_message(channel, place, record, uid, red_dot == 1, expiring == 1 and ARGV[at + MESSAGE_ARGS + dedupe])
        else
          channel[PUB] = pub
        end
        local head = message_head(pub, id, seq)
        if frames then
          frames[pieces + 1], frames[pieces + 2], frames[pieces + 3] = head, record, ARGV[at + 2]
        else
          frames = { head, record, ARGV[at + 2] }
          s[FRAMES] = frames
        end
        pieces = pieces + 3
        s[NOTED], reply[answered + 1] = false, head
        if channel[NEWEST] then
          s[BEFORES] = s[BEFORES] or {}
          s[BEFORES][answered + 1], channel[NEWEST] = channel[NEWEST], id
        end
      end
    end
    answered = answered + 1
    if first_id then reply[answered] = answer(RETRY, first_pub, first_id, first_seq) end
  end
end

local s = { 2, HEADER_BYTES + 1, 0, false, false, false, false, false }
local reply, errors, is_changed = {}, nil, false
-- What users' topics get, the topics in the order that they were met, and those that several
-- channels tell.
local of_topic, topics, is_shared

while ARGV[s[AT]] do
  local first, users, messages = s[AT], string.byte(ARGV[1], s[BYTE], s[BYTE] + 1)
  s[AT], s[BYTE], s[LEFT], s[CHANNEL], s[FRAMES] = first + CHANNEL_ARGS + users * USER_ARGS, s[BYTE] + CHANNEL_BYTES, messages, false, false
  while s[LEFT] > 0 do
    local is_done, what = pcall(append, s, reply, first, users, now, window, bucket, most, retention > 0 or keeps > 0)
    if not is_done then
      errors = errors or {}
      errors[#errors + 1] = type(what) == 'table' and what.err or tostring(what)
      if s[NOTED] then redis.call('DEL', s[NOTED]) end
      s[NOTED], reply[#reply + 1] = false, answer(FAILED, 0, 0, 0)
    end
  end
  local frames = s[FRAMES]
  if frames then
    is_changed = true
    close_channel(s[CHANNEL], now, retention, keeps)
    if users > 0 and not topics then of_topic, topics, is_shared = {}, {}, {} end
    for user = 0, users - 1 do
      local of_user = ARGV[first + CHANNEL_ARGS + 2 + user * USER_ARGS] .. 'topic'
      local before = of_topic[of_user]
      if not before then
        of_topic[of_user], topics[#topics + 1] = frames, of_user
      else
        if not is_shared[of_user] then
          before, is_shared[of_user] = { unpack(before) }, true
          of_topic[of_user] = before
        end
        for i = 1, #frames do before[#before + 1] = frames[i] end
      end
    end
    local topic = ARGV[first + 2]
    if topic ~= '' then redis.call('SPUBLISH', topic, messages_frame(frames)) end
  end
end

-- Two users of one channel get the same.
local last_frames, last_packed
for at = 1, topics and #topics or 0 do
  local topic = topics[at]
  if of_topic[topic] ~= last_frames then
    last_frames = of_topic[topic]
    last_packed = messages_frame(last_frames)
  end
  redis.call('SPUBLISH', topic, last_packed)
end

if s[BEFORES] then
  local messages = #reply
  for at = 1, messages do reply[messages + at] = struct.pack('>d', s[BEFORES][at] or 0) end
end
local answers = table.concat(reply)
if not errors then return answers end
-- A server that takes no writes now refuses the call as a whole: its client has to know.
if not is_changed then
  for _, text in ipairs(errors) do
    local code = string.match(text, '^%-?(%u+) ')
    if code and code ~= 'ERR' and code ~= 'WRONGTYPE' then return redis.error_reply(text) end
  end
end
return { answers, unpack(errors) }
