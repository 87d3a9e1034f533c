-- Appends messages to channels: every message that is not a retry and whose sender may send. Each
-- message succeeds or fails by itself. A message that fails changes nothing, except that a time in
-- `peers` may be later. All messages of a topic are published at once.
--
-- Most of the cost of a call with one message is the creation of functions, of locals that
-- functions share, of arguments and of strings, because Redis creates all of them again at each
-- call. Therefore state is kept in lists that are passed to functions, and numbers are packed into
-- one argument.
--
-- KEYS
--   1  counter of message ids. All other keys are in its slot, or all keys are on one server.
-- ARGV
--   1  numbers, big-endian
--        now             f64   Unix ms
--        dedupe window   f64   ms
--        retention       f64   ms, 0 means no limit
--        max messages    f64   messages that a channel keeps, 0 means no limit
--        bucket          f64   bucket of the counter, -1 on a single server
--        messages        f64   number of messages in the call
--        moving          u8    1 if a slot may be moving, else 0
--      for each channel
--        users           u8    number of users in reach; 0 for a group or if they are elsewhere
--        messages        u8    number of messages
--      for each message of the channel
--        stored          u8    1 if the message is stored, else 0
--        red dot         u8    1 if it has a red dot, else 0
--        dedupe          u8    1 if it has a dedupe key, else 0
--        check           u8    1 to 4: check of the sender, see `permission.lua`; 0: no check
--        expires         u8    1 if it expires, else 0
--        refusal         u8    refusal that the caller decided on, 0 if there is none
--   then for each channel
--        base            beginning of the names of the channel's keys
--        key             channel key
--        topic           the group's topic, '' for a personal channel
--   for each user in reach
--        uid
--        record base     beginning of the names of the keys of the user's record
--        user base       beginning of the names of the user's keys
--   for each message of the channel
--        uid             sender
--        record
--        extra
--        dedupe key      only if `dedupe` is 1
--        expiry          Unix ms, only if `expires` is 1
-- Reply
--   bytes, for each message in order
--        version         u8
--        result          u8    1 appended, 2 retry, 3 refused, 4 failed
--        pub             f64   publication number; the refusal if it is refused
--        messageId       f64
--        messageSeq      f64   0 if it is not stored
--   for each message, only if a channel's users are in other slots
--        idBefore        f64   id of the channel's message before it, 0 if it is unknown
--   The fields of a retry are those of the first message. If messages failed, the reply is a list
--   of these bytes and the errors in order.
local RETRY = 2
local REFUSED = 3
local FAILED = 4
local HEADER_BYTES = 49
local CHANNEL_ARGS = 3
local USER_ARGS = 3
local CHANNEL_BYTES = 2
local MESSAGE_ARGS = 3
local MESSAGE_BYTES = 6
-- Fields of the progress of a call (`s`), which is a list.
local AT = 1 -- index in ARGV of the current message
local BYTE = 2 -- index of the current message in the packed numbers
local LEFT = 3 -- number of messages of the channel that are left
local CHANNEL = 4 -- the open channel, false until a message needs it
local FRAMES = 5 -- strings to publish on the channel's topics, false if there are none
local LAST_ID = 6 -- message id assigned last, false if none was
-- Dedupe key that was written for the current message and is deleted if the message fails.
local NOTED = 7
local BEFORES = 8 -- list of idBefore by index in the reply, false if no message has one

-- Encodes the result of a message that was not appended. The result of an appended message is the
-- head of its frame, which has the same layout.
local function answer(what, pub, id, seq) return struct.pack('>BBddd', 2, what, pub, id, seq) end

local now, window, retention, keeps, bucket, most, is_moving = struct.unpack('>ddddddB', ARGV[1])

-- The commands below use keys that the script does not declare. While a slot moves, some of these
-- keys may be on another server. Accessing all of them here makes Redis report that before anything
-- is written.
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

-- Appends the current message and the further ones of its channel until one fails. `first` is the
-- index of the channel's arguments, `users` the number of its users in reach.
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
      local id = last_id and next_id(last_id, bucket, now) or reserve_ids(KEYS[1], bucket, now, most)
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
-- The strings to publish on each user's topic; the topics in the order in which they were first
-- used; and the topics whose strings several channels share.
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

-- The two users of a channel usually get the same strings, which are packed once.
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
-- If every message failed because the server accepts no writes now, the call fails as a whole, so
-- that the client notices the state of the server.
if not is_changed then
  for _, text in ipairs(errors) do
    local code = string.match(text, '^%-?(%u+) ')
    if code and code ~= 'ERR' and code ~= 'WRONGTYPE' then return redis.error_reply(text) end
  end
end
return { answers, unpack(errors) }
