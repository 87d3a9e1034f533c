-- Appends messages to channels: each one that is no retry, and whose sender may send. Each for itself: what fails harms no other, and leaves nothing unless a key is of a wrong type.
-- Reads come before writes. All that a topic is told goes out as one frame. Lua's strings and tables are what most of it costs: names are made when they
-- are needed.
-- KEYS  1 the counter of ids of the first channel's bucket; the other keys are in its slot, or all on one server
-- ARGV  1 now, 2 ms for which clientMsgNo is remembered, 3 retention (ms, 0: for ever), 4 how many messages a channel keeps (0: all),
--       5 1: a slot may be moving, 6 number of channels; then of each channel
--         key, bucket, what its keys begin with, number of its users in reach (0: a group, or users in other slots), its topic in reach or '';
--         of each user uid, what the keys of the user's record begin with, what the user's keys begin with, topic;
--       then of each message
--         which channel, sum of flags below and CODE times the refusal that was decided on before (0: none), Unix ms when it expires (0: never), uid,
--         clientMsgNo (read with DEDUPE only), record, extra, Unix ms when it was accepted
-- Reply of each message in order: 0 appended, 1 a retry, 2 failed, 3 refused; messageId (refused: which refusal), messageSeq (0: not kept), pub (both
--       of a retry as of the first message); then the errors of those that failed, in order
local KEEP, RED_DOT, DEDUPE, CHECK, CODE = 1, 2, 4, 8, 16
local APPENDED, RETRY, FAILED, REFUSED = 0, 1, 2, 3
local MESSAGE_ARGS, USER_ARGS = 8, 4
local now, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local retention, keeps = tonumber(ARGV[3]), tonumber(ARGV[4])
local channels, counters, facts = {}, {}, {}

local function record_keys(base, key)
  return { info = base .. 'info:' .. key, perm = base .. 'perm:' .. key, temp = base .. 'temp:' .. key }
end

-- The channel whose arguments begin at `at`, and where the next ones do.
local function take_channel(at)
  local key, base, users = ARGV[at], ARGV[at + 2], tonumber(ARGV[at + 3])
  local c = { at = at, key = key, base = base, users = users, now = now, retention = retention, keeps = keeps }
  return c, at + 5 + users * USER_ARGS
end

local function counter_of(c)
  local bucket = ARGV[c.at + 1]
  local ids = counters[bucket]
  if not ids then
    ids = open_ids(c.base .. 'id', tonumber(bucket))
    counters[bucket] = ids
  end
  return ids
end

local function keys_of(c)
  local base, key = c.base, c.key
  local k = { head = base .. 'head:' .. key, log = base .. 'log:' .. key, own = base .. 'own:' .. key, due = base .. 'due' }
  if c.users > 0 then
    k.peers, c.peers = {}, {}
    for i = 1, c.users do
      local at = c.at + 1 + i * USER_ARGS
      k.peers[i], c.peers[c.users + 1 - i] = ARGV[at + 2] .. 'peers', ARGV[at]
    end
  end
  return k
end

local function judge(c, uid)
  if c.users == 0 then return group_refusal(facts, record_keys(c.base, c.key), uid) end
  local one, other = c.at + 5, c.at + 1 + c.users * USER_ARGS
  if ARGV[other] == uid then one, other = other, one end
  local from, to = record_keys(ARGV[one + 1], '1:' .. ARGV[one]), record_keys(ARGV[other + 1], '1:' .. ARGV[other])
  return person_refusal(facts, to, from, uid)
end

-- Nothing that a call does changes what the sender of several messages may.
local function refusal_of(c, uid)
  local judged = c.judged
  if not judged then
    judged = {}
    c.judged = judged
  end
  if not judged[uid] then judged[uid] = judge(c, uid) end
  return judged[uid]
end

local function remembered_key(c, uid, no) return c.base .. 'dd:' .. c.key .. '\n' .. uid .. '\n' .. no end

-- What becomes of the message whose arguments stand behind `at`: its part of the reply.
local function append(c, at)
  local flags, uid = tonumber(ARGV[at + 2]), ARGV[at + 4]
  local remembers = nil
  if bit.band(flags, DEDUPE) ~= 0 then
    remembers = remembered_key(c, uid, ARGV[at + 5])
    local id, seq, pub = remembered(remembers, now, window)
    if id then return RETRY, id, seq, pub end
  end
  local refused = bit.band(flags, CHECK) ~= 0 and refusal_of(c, uid) or math.floor(flags / CODE)
  if refused ~= 0 then return REFUSED, refused, 0, 0 end
  if not c.is_open then open_channel(keys_of(c), c) end
  local id, seq, pub = take_id(counter_of(c), now), 0, nil
  if bit.band(flags, KEEP) ~= 0 then
    local m = { id = id, record = ARGV[at + 6], uid = uid, red = bit.band(flags, RED_DOT) ~= 0 }
    if ARGV[at + 3] ~= '0' then
      m.expires = tonumber(ARGV[at + 3])
      c.k.exp, c.k.dot = c.base .. 'exp:' .. c.key, c.base .. 'dot:' .. c.key
    end
    seq, pub = place_message(c, m)
  else
    pub = take_pub(c)
  end
  c.changed, c.newest_at = true, ARGV[at + 8]
  if remembers then remember(remembers, { now = now, window = window, id = id, seq = seq, pub = pub }) end
  return APPENDED, id, seq, pub
end

local first = 7
for i = 1, tonumber(ARGV[6]) do channels[i], first = take_channel(first) end
first = first - 1
local count = (#ARGV - first) / MESSAGE_ARGS

-- Commands of a script name their keys where Redis cannot know them beforehand. While a slot moves, some of them may be at another server: then it
-- says so here, before anything is written.
if ARGV[5] == '1' then
  local named = {}
  for _, c in ipairs(channels) do
    local base = c.base
    for _, part in ipairs({ 'head:', 'log:', 'own:', 'exp:', 'dot:', 'info:', 'perm:', 'temp:' }) do named[#named + 1] = base .. part .. c.key end
    named[#named + 1] = base .. 'due'
    named[#named + 1] = base .. 'id'
  end
  for at = first, #ARGV - 1, MESSAGE_ARGS do
    if bit.band(tonumber(ARGV[at + 2]), DEDUPE) ~= 0 then
      named[#named + 1] = remembered_key(channels[tonumber(ARGV[at + 1])], ARGV[at + 4], ARGV[at + 5])
    end
  end
  redis.call('EXISTS', unpack(named))
end

local reply, errors, failed, changed = {}, {}, 0, false

local function fail(i, cause)
  reply[i + 1], reply[i + 2], reply[i + 3], reply[i + 4] = FAILED, 0, 0, 0
  errors[i], failed = type(cause) == 'table' and cause.err or tostring(cause), failed + 1
end

for n = 0, count - 1 do
  local i, at = n * 4, first + n * MESSAGE_ARGS
  local done, what, id, seq, pub = pcall(append, channels[tonumber(ARGV[at + 1])], at)
  if done then
    reply[i + 1], reply[i + 2], reply[i + 3], reply[i + 4] = what, id, seq, pub
    changed = changed or what == APPENDED
  else
    fail(i, what)
  end
end

for _, ids in pairs(counters) do
  if ids.last then close_ids(ids) end
end

-- A server that takes no writes now refuses the call as a whole: its client has to know.
if failed > 0 and not changed then
  for _, text in pairs(errors) do
    local code = string.match(text, '^%-?(%u+) ')
    if code and code ~= 'ERR' and code ~= 'WRONGTYPE' then return redis.error_reply(text) end
  end
end

for _, c in ipairs(channels) do
  if c.changed or c.stored then
    local done, cause = pcall(close_channel, c)
    if not done then c.broken = cause end
  end
end

-- By topic: its frames in pieces, each behind its length, which is left out where there is one only.
local told, topics = {}, {}

local function tell_of(topic, head, at)
  local pieces = told[topic]
  if not pieces then
    pieces = {}
    told[topic], topics[#topics + 1] = pieces, topic
  end
  local last, record, extra = #pieces, ARGV[at + 6], ARGV[at + 7]
  pieces[last + 1], pieces[last + 2], pieces[last + 3], pieces[last + 4] = #head + #record + #extra, head, record, extra
end

for n = 0, count - 1 do
  local i, at = n * 4, first + n * MESSAGE_ARGS
  if reply[i + 1] == APPENDED then
    local c = channels[tonumber(ARGV[at + 1])]
    if c.broken then
      fail(i, c.broken)
    else
      local head = message_head(reply[i + 4], reply[i + 2], reply[i + 3], #ARGV[at + 6])
      local topic = ARGV[c.at + 4]
      if topic ~= '' then tell_of(topic, head, at) end
      for user = 1, c.users do tell_of(ARGV[c.at + 4 + user * USER_ARGS], head, at) end
    end
  end
end
for _, topic in ipairs(topics) do
  local pieces = told[topic]
  if #pieces == 4 then
    redis.call('SPUBLISH', topic, pieces[2] .. pieces[3] .. pieces[4])
  else
    for at = 1, #pieces, 4 do pieces[at] = struct.pack('>I4', pieces[at]) end
    redis.call('SPUBLISH', topic, BATCH_HEAD .. table.concat(pieces))
  end
end

if failed > 0 then
  for n = 0, count - 1 do
    if errors[n * 4] then reply[#reply + 1] = errors[n * 4] end
  end
end
return reply
