-- Writes messages into their channel's log: `open_channel` reads the head, `place_message` adds one
-- entry, and `close_channel` writes the head once. The types of the keys are checked first, so a
-- message that cannot be stored changes nothing except `peers`. Numbers are passed to Redis as
-- strings, because Lua formats them faster than Redis does.

-- Number of messages after which a channel above its maximum is due for another sweep. If a tenth
-- of the maximum is less, the tenth applies.
local MAX_EXCESS = 100

-- Indexes of the fields of an open channel. An open channel is a list, because Lua creates a list
-- faster than a table with named fields.
local BASE = 1 -- key prefix of the channel
local KEY = 2
local HEAD = 3 -- name of the key `head`
local PEERS = 4 -- the argument `peers` of `open_channel`
local OPENED_SEQ = 5 -- newest seq when the channel was opened
local SEQ = 6
local RED = 7 -- number of messages through SEQ that have a red dot and do not expire
local PUB = 8 -- newest publication number
local BARE = 9 -- 1 if a sweep emptied the log, else false
local INFO = 10 -- the channel's record, false if there is none
-- True if `close_channel` may have to write `due` even if no placed message expires.
local MAY_SWEEP = 11
-- Id of the newest message, stored or not, 0 if that id is unknown. The caller updates it. Always
-- false unless the channel is personal and its users are in other slots.
local NEWEST = 12
local LOG = 13 -- name of the key `log`, false until a message was placed
-- Fields `@<uid>` to write into the head, each followed by the seq of a message from this uid.
-- False until a message was placed.
local SENDERS = 14
local LAST_SENDER = 15 -- sender of the last placed message, false until a message was placed
local LISTS = 16 -- bits of the lists that are not empty, false if both lists are empty
-- Earliest Unix ms at which a placed message expires, false if no placed message expires.
local DUE = 17
local LAST = 18 -- entry id of the last placed message, false until a message was placed
-- Number of the newest event in the bucket's feed before the placed messages, false if the feed is
-- off
local FEED = 19
local FEED_IDS = 20 -- ids of the placed messages, which get events, false if the feed is off

-- Reads a channel's head and returns an open channel.
--   peers       list of Unix ms (as a string) and, for each user of a personal channel, the key
--               `peers` and the uid to add to it; false for a group, or if the users are in other
--               slots. Before it calls `place_message`, the caller sets the Unix ms to the time in
--               the id of the first message.
--   is_limited  true if the age or the number of the channel's messages is limited
--   is_apart    true if the channel is a personal channel whose users are in other slots
local function open_channel(base, key, peers, is_limited, is_apart)
  local head, fields = base .. 'head:' .. key, nil
  if is_apart then
    fields = redis.call('HMGET', head, 'seq', 'red', 'pub', 'bare', 'info', 'lists', 'newest')
  else
    fields = redis.call('HMGET', head, 'seq', 'red', 'pub', 'bare', 'info', 'lists')
  end
  local seq_text, red_text, pub_text, bare = fields[1], fields[2], fields[3], fields[4]
  local seq = tonumber(seq_text) or 0
  local red = red_text == seq_text and seq or tonumber(red_text) or 0
  local pub = pub_text == seq_text and seq or tonumber(pub_text) or 0
  local may_sweep, newest = is_limited or bare or seq == 0, is_apart and (tonumber(fields[7]) or 0)
  return { base, key, head, peers, seq, seq, red, pub, bare, fields[5], may_sweep, newest, false, false, false, fields[6], false, false, false, false }
end

-- Adds one message to the log. Afterwards `channel[SEQ]` is its seq and `channel[PUB]` its
-- publication number.
--   entry_id  `<seq>-<messageId>`
--   expires   Unix ms as a string, nil or false if the message does not expire
--   stream    clientMsgNo of the stream that the message starts, nil if it starts no stream
local function place_message(channel, entry_id, record, uid, red_dot, expires, stream)
  local seq, red, log, senders = channel[SEQ] + 1, channel[RED], channel[LOG], channel[SENDERS]
  if expires or not log then
    -- These reads change nothing, but fail if a key has the wrong type, so that the later writes to
    -- these keys cannot fail.
    if expires or channel[MAY_SWEEP] then redis.call('ZCARD', channel[BASE] .. 'due') end
    if expires then
      redis.call('ZCARD', channel[BASE] .. 'expiry:' .. channel[KEY])
      redis.call('ZCARD', channel[BASE] .. 'redDots:' .. channel[KEY])
    end
    local peers = channel[PEERS]
    for at = 2, peers and #peers or 0, 2 do redis.call('ZADD', peers[at], 'GT', peers[1], peers[at + 1]) end
    log = channel[BASE] .. 'log:' .. channel[KEY]
    if not channel[LOG] then
      channel[FEED] = redis.call('HGET', channel[BASE] .. 'feed', 'number')
      if channel[FEED] then
        redis.call('XLEN', channel[BASE] .. 'events')
        channel[FEED_IDS] = {}
      end
    end
  end
  if red_dot and not expires then red = red + 1 end
  if stream and expires then
    redis.call('XADD', log, entry_id, 'c', int(red), 'r', record, 's', stream, 'x', expires)
  elseif stream or expires then
    redis.call('XADD', log, entry_id, 'c', int(red), 'r', record, stream and 's' or 'x', stream or expires)
  elseif red == seq then
    redis.call('XADD', log, entry_id, 'r', record)
  else
    redis.call('XADD', log, entry_id, 'c', int(red), 'r', record)
  end
  if channel[LAST_SENDER] == uid then
    senders[#senders] = seq
  elseif senders then
    senders[#senders + 1], senders[#senders + 2], channel[LAST_SENDER] = '@' .. uid, seq, uid
  else
    channel[SENDERS], channel[LAST_SENDER], channel[LOG] = { '@' .. uid, seq }, uid, log
  end
  channel[SEQ], channel[RED], channel[PUB], channel[LAST] = seq, red, channel[PUB] + 1, entry_id
  local ids = channel[FEED_IDS]
  if ids then ids[#ids + 1] = string.sub(entry_id, string.find(entry_id, '-', 1, true) + 1) end
  if expires then
    redis.call('ZADD', channel[BASE] .. 'expiry:' .. channel[KEY], expires, entry_id)
    if red_dot then redis.call('ZADD', channel[BASE] .. 'redDots:' .. channel[KEY], int(seq), int(seq) .. ':' .. expires) end
    channel[DUE] = math.min(channel[DUE] or math.huge, tonumber(expires))
  end
end

-- Writes the events of the placed messages to the bucket's feed as one entry (see `events` in
-- `ports.ts`).
local function write_events(channel)
  local ids, count, feed, events = channel[FEED_IDS], #channel[FEED_IDS], channel[BASE] .. 'feed', channel[BASE] .. 'events'
  local number, id, seq = int(tonumber(channel[FEED]) + count), ids[count], int(channel[SEQ] - count + 1)
  if count == 1 then
    redis.call('XADD', events, number .. '-' .. id, 't', '0', 'k', channel[KEY], 's', seq)
  else
    redis.call('XADD', events, number .. '-' .. id, 't', '0', 'k', channel[KEY], 's', seq, 'i', table.concat(ids, ' '))
  end
  redis.call('HSET', feed, 'number', number, 'id', id)
end

-- Writes the head of a channel and the events of the placed messages. At least one publication
-- number must have been assigned. Adds the channel to `due` if a sweep must process it. A channel
-- without limits is added with the score +inf when its log begins, so that a sweep finds it if
-- limits are set later.
local function close_channel(channel, now, retention, max_messages)
  local seq, senders, pub_text = channel[SEQ], channel[SENDERS], int(channel[PUB])
  if not senders then
    if channel[NEWEST] then
      redis.call('HSET', channel[HEAD], 'pub', pub_text, 'newest', int(channel[NEWEST]))
    else
      redis.call('HSET', channel[HEAD], 'pub', pub_text)
    end
    return
  end
  local seq_text = channel[PUB] == seq and pub_text or int(seq)
  for at = 2, #senders - 2, 2 do senders[at] = int(senders[at]) end
  senders[#senders] = seq_text
  if channel[NEWEST] then senders[#senders + 1], senders[#senders + 2] = 'newest', int(channel[NEWEST]) end
  redis.call('HSET', channel[HEAD], 'seq', seq_text, 'red', channel[RED] == seq and seq_text or int(channel[RED]), 'pub', pub_text, 'last', channel[LAST], unpack(senders))
  if channel[FEED_IDS] then write_events(channel) end
  if not channel[MAY_SWEEP] and not channel[DUE] then return end
  local due = channel[DUE]
  if retention > 0 then due = math.min(due or math.huge, now + retention) end
  if max_messages > 0 then
    local last = seq - seq % math.min(MAX_EXCESS, math.ceil(max_messages / 10))
    if last > channel[OPENED_SEQ] and last > max_messages then due = math.min(due or now, now) end
  end
  if due then
    redis.call('ZADD', channel[BASE] .. 'due', 'LT', int(due), channel[KEY])
  elseif channel[OPENED_SEQ] == 0 or channel[BARE] then
    redis.call('ZADD', channel[BASE] .. 'due', 'NX', '+inf', channel[KEY])
  end
  if channel[BARE] then redis.call('HDEL', channel[HEAD], 'bare') end
end
