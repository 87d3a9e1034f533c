-- Appends messages to channels. Each message succeeds or fails independently. A message that fails
-- changes nothing, except that it may use up a message id and update `peers`. Redis creates all
-- functions, locals and arguments anew for each call. To save time, state is kept in lists that are
-- passed to functions, and numbers are packed into one argument.
--
-- KEYS   counter          message id counter. All other keys are in its slot, or all keys are on
--                         one server.
-- ARGV   numbers          big-endian
--             now             f64   Unix ms
--             dedupe window   f64   ms
--             retention       f64   ms, 0 means no limit
--             max messages    f64   messages that a channel keeps, 0 means no limit
--             bucket          f64   bucket of the counter, -1 on a single server
--             messages        f64   number of messages in the call
--             moving          u8    1 if a slot may be moving, else 0
--           for each channel
--             users           u8    number of users listed below; 0 for a group, or if the users
--                                   are in other slots
--             messages        u8    number of messages
--           for each message of the channel
--             stored          u8    1 if the message is stored, else 0
--             red dot         u8    1 if the message has a red dot, else 0
--             dedupe          u8    1 if the message has a dedupe key, else 0
--             check           u8    1 to 5: check of the sender, see `permission.lua`; 0: no check
--             expires         u8    1 if the message expires, else 0
--             refusal         u8    refusal that the caller decided on, or 0
--             reuse           u8    1 if its clientMsgNo may belong to another message, else 0
--             payload hash    8 B   see `store/payload-hash.ts`; zeros without a dedupe key
--        then for each channel
--             base            key prefix of the channel
--             key             channel key
--             topic           the group's topic, '' for a personal channel
--        for each of the channel's users
--             uid
--             record base     key prefix of the user's record
--             user base       key prefix of the user
--        for each message of the channel
--             uid             sender
--             record
--             extra           of the message's frame, see `wire.ts`
--             dedupe key      only if `dedupe` is 1
--             expiry          Unix ms, only if `expires` is 1
-- Reply  bytes, for each message in order
--             version         u8
--             result          u8    1 appended, 2 retry, 3 refused, 4 failed, 5 refused, because
--                                   the clientMsgNo belongs to another message
--             pub             f64   publication number; the refusal if the message is refused
--             messageId       f64
--             messageSeq      f64   0 if the message is not stored
--        for each message, only if one was appended to a channel whose users are in other slots
--             idBefore        f64   id of the channel's message before it, 0 if that id is unknown
--                                   or the message was not appended
--        With results 2 and 5, the fields describe the first message with the clientMsgNo. If
--        messages failed, the reply is a list of these bytes and the errors in order.
local counter = KEYS[1]
local numbers = ARGV[1]
local FIRST_CHANNEL = 2

local RETRY = 2
local REFUSED = 3
local FAILED = 4
local REUSED = 5
-- Numbers of packed bytes (`BYTES`) and of arguments (`ARGS`) for the call itself (`HEADER`) and
-- for each channel, user and message.
local HEADER_BYTES = 49
local CHANNEL_ARGS = 3
local USER_ARGS = 3
local CHANNEL_BYTES = 2
local MESSAGE_ARGS = 3
local MESSAGE_BYTES = 15
-- Indexes of the fields of `progress`, a list that tracks the progress of the call.
local ARG_INDEX = 1 -- index in ARGV of the next message or channel
local BYTE_INDEX = 2 -- index of the next message or channel in the packed numbers
local MESSAGES_LEFT = 3 -- number of messages of the channel that are not processed yet
local CHANNEL = 4 -- the open channel, false before its first message is processed
local FRAMES = 5 -- strings to publish on the channel's topics, false if there are none
local LAST_ID = 6 -- last assigned message id, false if the call has assigned none
-- Dedupe key that was written for the current message, and must be deleted if the message fails.
-- False if no dedupe key was written.
local WRITTEN_DEDUPE = 7
local IDS_BEFORE = 8 -- list of idBefore by index in the reply, false if no message has one

-- Encodes the result of a message that was not appended. The result of an appended message is the
-- head of its published frame, which has the same layout.
local function encode_result(result, pub, id, seq) return struct.pack('>BBddd', 2, result, pub, id, seq) end

local now, window, retention, max_messages, bucket, message_count, is_moving = struct.unpack('>ddddddB', numbers)
now = id_ms(bucket, now)

-- If a slot may be moving, accesses the undeclared keys of the call first, so that Redis reports a
-- moved key before anything is written.
if is_moving == 1 then
  local keys, at, byte = { counter }, FIRST_CHANNEL, HEADER_BYTES + 1
  while ARGV[at] do
    local base, key = ARGV[at], ARGV[at + 1]
    for _, part in ipairs({ 'head:', 'log:', 'expiry:', 'redDots:', 'permanent:', 'temporary:', 'denylist:', 'allowlist:' }) do keys[#keys + 1] = base .. part .. key end
    keys[#keys + 1], keys[#keys + 2], keys[#keys + 3] = base .. 'due', base .. 'feed', base .. 'events'
    local users, messages = string.byte(numbers, byte, byte + 1)
    at, byte = at + CHANNEL_ARGS + users * USER_ARGS, byte + CHANNEL_BYTES
    for _ = 1, messages do
      local _, _, dedupe, _, expires = string.byte(numbers, byte, byte + 4)
      if dedupe == 1 then keys[#keys + 1] = ARGV[at + MESSAGE_ARGS] end
      at, byte = at + MESSAGE_ARGS + dedupe + expires, byte + MESSAGE_BYTES
    end
  end
  redis.call('EXISTS', unpack(keys))
end

-- Appends the remaining messages of a channel until one of them fails. The caller then calls this
-- function again. `first` is the index in ARGV of the channel's first argument.
local function append(counter, numbers, progress, reply, first, users, now, window, bucket, message_count, is_limited)
  local ARGV, byte, channel, frames, result_count = ARGV, string.byte, progress[CHANNEL], progress[FRAMES], #reply
  local string_count, checked_uid, checked_how, checked_refusal, now_text = frames and #frames or 0, nil, nil, nil, nil
  while progress[MESSAGES_LEFT] > 0 do
    local at = progress[ARG_INDEX]
    progress[MESSAGES_LEFT] = progress[MESSAGES_LEFT] - 1
    local stored, red_dot, dedupe, check, expiring, refusal, reuse = byte(numbers, progress[BYTE_INDEX], progress[BYTE_INDEX] + 6)
    local hash = dedupe == 1 and string.sub(numbers, progress[BYTE_INDEX] + 7, progress[BYTE_INDEX] + 14)
    progress[ARG_INDEX], progress[BYTE_INDEX] = at + MESSAGE_ARGS + dedupe + expiring, progress[BYTE_INDEX] + MESSAGE_BYTES
    if not channel then
      local peers, first_user, second_user = false, first + CHANNEL_ARGS, first + CHANNEL_ARGS + USER_ARGS
      if users == 1 then peers = { false, ARGV[first_user + 2] .. 'peers', ARGV[first_user] } end
      if users == 2 then peers = { false, ARGV[first_user + 2] .. 'peers', ARGV[second_user], ARGV[second_user + 2] .. 'peers', ARGV[first_user] } end
      local base, key, topic = ARGV[first], ARGV[first + 1], ARGV[first + 2]
      channel = open_channel(base, key, peers, is_limited, users == 0 and topic == '')
      progress[CHANNEL] = channel
    end
    local uid, record, extra, dedupe_key = ARGV[at], ARGV[at + 1], ARGV[at + 2], dedupe == 1 and ARGV[at + MESSAGE_ARGS]
    local first_id, first_seq, first_pub, first_hash
    if check > 0 then
      if checked_uid ~= uid or checked_how ~= check then
        if users == 0 then
          checked_refusal = group_refusal(channel[INFO], channel[LISTS], channel[BASE], channel[KEY], uid, check)
        else
          local from, to = first + CHANNEL_ARGS, first + CHANNEL_ARGS + (users - 1) * USER_ARGS
          if ARGV[to] == uid then from, to = to, from end
          checked_refusal = person_refusal(ARGV[to + 1], '1:' .. ARGV[to], ARGV[from + 1], '1:' .. ARGV[from], uid, check)
        end
        checked_uid, checked_how = uid, check
      end
      refusal = checked_refusal
    end
    if refusal > 0 then
      if dedupe_key then first_id, first_seq, first_pub, first_hash = read_dedupe(dedupe_key, now, window) end
      if first_id and reuse == 1 and is_other_payload(first_hash, hash) then first_id = nil end
      if not first_id then reply[result_count + 1] = encode_result(REFUSED, refusal, 0, 0) end
    else
      local last_id = progress[LAST_ID]
      local id = last_id and next_id(last_id, bucket, now) or reserve_ids(counter, bucket, now, message_count)
      local seq, pub = stored == 1 and channel[SEQ] + 1 or 0, channel[PUB] + 1
      local entry_id = string.format('%d-%d', seq, id)
      progress[LAST_ID] = id
      if dedupe_key then
        now_text = now_text or int(now)
        first_id, first_seq, first_pub, first_hash = write_dedupe(dedupe_key, window, now_text, entry_id, pub ~= seq and int(pub), hash, true, reuse)
        if not first_id then progress[WRITTEN_DEDUPE] = dedupe_key end
      end
      if not first_id then
        if stored == 1 then
          local peers = channel[PEERS]
          if peers and not peers[1] then peers[1] = int(message_ms(id)) end
          place_message(channel, entry_id, record, uid, red_dot == 1, expiring == 1 and ARGV[at + MESSAGE_ARGS + dedupe])
        else
          channel[PUB] = pub
        end
        local head = message_head(pub, id, seq)
        if frames then
          frames[string_count + 1], frames[string_count + 2], frames[string_count + 3] = head, record, extra
        else
          frames = { head, record, extra }
          progress[FRAMES] = frames
        end
        string_count = string_count + 3
        progress[WRITTEN_DEDUPE], reply[result_count + 1] = false, head
        if channel[NEWEST] then
          progress[IDS_BEFORE] = progress[IDS_BEFORE] or {}
          progress[IDS_BEFORE][result_count + 1], channel[NEWEST] = channel[NEWEST], id
        end
      end
    end
    result_count = result_count + 1
    if first_id then reply[result_count] = encode_result(is_other_payload(first_hash, hash) and REUSED or RETRY, first_pub, first_id, first_seq) end
  end
end

local progress = { FIRST_CHANNEL, HEADER_BYTES + 1, 0, false, false, false, false, false }
local reply, errors, is_changed = {}, nil, false
-- `topics` lists the topics of users, and `frames_of` maps each topic to the list of its strings.
-- The topics of both users of a channel share one list. `is_shared` is true for a topic on which
-- several channels publish. Such a topic has its own copy of the list.
local frames_of, topics, is_shared

while ARGV[progress[ARG_INDEX]] do
  local first, users, messages = progress[ARG_INDEX], string.byte(numbers, progress[BYTE_INDEX], progress[BYTE_INDEX] + 1)
  progress[ARG_INDEX], progress[BYTE_INDEX], progress[MESSAGES_LEFT], progress[CHANNEL], progress[FRAMES] = first + CHANNEL_ARGS + users * USER_ARGS, progress[BYTE_INDEX] + CHANNEL_BYTES, messages, false, false
  while progress[MESSAGES_LEFT] > 0 do
    local is_ok, failure = pcall(append, counter, numbers, progress, reply, first, users, now, window, bucket, message_count, retention > 0 or max_messages > 0)
    if not is_ok then
      errors = errors or {}
      errors[#errors + 1] = type(failure) == 'table' and failure.err or tostring(failure)
      if progress[WRITTEN_DEDUPE] then redis.call('DEL', progress[WRITTEN_DEDUPE]) end
      progress[WRITTEN_DEDUPE], reply[#reply + 1] = false, encode_result(FAILED, 0, 0, 0)
    end
  end
  local frames = progress[FRAMES]
  if frames then
    is_changed = true
    close_channel(progress[CHANNEL], now, retention, max_messages)
    if users > 0 and not topics then frames_of, topics, is_shared = {}, {}, {} end
    for user = 0, users - 1 do
      local user_topic = ARGV[first + CHANNEL_ARGS + 2 + user * USER_ARGS] .. 'topic@DATABASE'
      local topic_frames = frames_of[user_topic]
      if not topic_frames then
        frames_of[user_topic], topics[#topics + 1] = frames, user_topic
      else
        if not is_shared[user_topic] then
          topic_frames, is_shared[user_topic] = { unpack(topic_frames) }, true
          frames_of[user_topic] = topic_frames
        end
        for i = 1, #frames do topic_frames[#topic_frames + 1] = frames[i] end
      end
    end
    local topic = ARGV[first + 2]
    if topic ~= '' then redis.call('SPUBLISH', topic, messages_frame(frames)) end
  end
end

-- Both users of a channel usually get the same strings, so the strings are packed only once.
local last_frames, last_packed
for at = 1, topics and #topics or 0 do
  local topic = topics[at]
  if frames_of[topic] ~= last_frames then
    last_frames = frames_of[topic]
    last_packed = messages_frame(last_frames)
  end
  redis.call('SPUBLISH', topic, last_packed)
end

if progress[IDS_BEFORE] then
  local messages = #reply
  for at = 1, messages do reply[messages + at] = struct.pack('>d', progress[IDS_BEFORE][at] or 0) end
end
local results = table.concat(reply)
if not errors then return results end
-- If no message was appended, and an error shows that the server currently accepts no writes, the
-- whole call fails, so that the node detects the state of the server.
if not is_changed then
  for _, text in ipairs(errors) do
    local code = string.match(text, '^%-?(%u+) ')
    if code and code ~= 'ERR' and code ~= 'WRONGTYPE' then return redis.error_reply(text) end
  end
end
return { results, unpack(errors) }
