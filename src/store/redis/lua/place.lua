-- Writes messages into their channel's log. Used by every script that stores messages:
-- `open_channel` reads the head, `place_message` adds one entry, and `close_channel` writes the
-- head once. Every key that a message needs is accessed before anything is written, so a message
-- that cannot be stored (a key has a wrong type, or the head lags the log by more than one
-- entry) changes nothing. Numbers are passed to Redis as strings made once, because Redis formats
-- numbers more slowly.
-- Number of messages above the limit of a channel at which a sweep trims it; a tenth of the limit
-- if that is less.
local MAX_EXCESS = 100

-- Fields of an open channel (`c`). It is a list, which is created in a single step.
local BASE = 1 -- beginning of the names of its keys
local KEY = 2 -- channel key
local HEAD = 3 -- name of the key `head`
local PEERS = 4 -- as passed to `open_channel`
local FIRST = 5 -- newest seq when the channel was opened
local SEQ = 6 -- newest seq
local RED = 7 -- red-dot count of the newest seq
local PUB = 8 -- newest publication number
local BARE = 9 -- 1 if a sweep emptied the log, else false
local INFO = 10 -- the record, false if there is none
local SWEPT = 11 -- true if `due` may be written when the channel is closed
-- Id of the newest message, stored or not, 0 if unknown; kept up to date by the caller; false
-- unless the channel's users are in other slots.
local NEWEST = 12
local LOG = 13 -- name of the key `log`, false until a message was placed
-- Senders: fields `@<uid>` of the head, each followed by a seq; false until a message was placed.
local OWNERS = 14
local OWNER = 15 -- sender of the last message
local LISTS = 16 -- bits of the lists that are not empty, false if there are none
-- Unix ms at which a sweep must process the channel, false if no message requires one.
local DUE = 17

-- Reads a channel's head.
--   base        beginning of the names of the channel's keys
--   peers       of a personal channel whose users are in reach: now (as a string), then for each
--               user the key `peers` and the uid to add there; else false
--   is_limited  true if messages leave the log by age or number
--   is_apart    true if the channel is a personal channel whose users are in other slots
local function open_channel(base, key, peers, is_limited, is_apart)
  local head, found = base .. 'head:' .. key, nil
  if is_apart then
    found = redis.call('HMGET', head, 'seq', 'red', 'pub', 'bare', 'info', 'lists', 'newest')
  else
    found = redis.call('HMGET', head, 'seq', 'red', 'pub', 'bare', 'info', 'lists')
  end
  local seq_text, red_text, pub_text, bare = found[1], found[2], found[3], found[4]
  local seq = tonumber(seq_text) or 0
  local red = red_text == seq_text and seq or tonumber(red_text) or 0
  local pub = pub_text == seq_text and seq or tonumber(pub_text) or 0
  local is_swept, newest = is_limited or bare or seq == 0, is_apart and (tonumber(found[7]) or 0)
  return { base, key, head, peers, seq, seq, red, pub, bare, found[5], is_swept, newest, false, false, false, found[6], false }
end

-- Adds one message to the log. Afterwards `c[SEQ]` is its seq and `c[PUB]` its publication number.
--   place    ID of the entry
--   red_dot  true if the message has a red dot
--   expires  Unix ms as a string, nil or false if the message does not expire
--   stream   clientMsgNo of the stream whose message this is, nil if there is none
local function place_message(c, place, record, uid, red_dot, expires, stream)
  local seq, red, log, owners = c[SEQ] + 1, c[RED], c[LOG], c[OWNERS]
  if expires or not log then
    -- These commands fail if a key does not have the type that is written later.
    if expires or c[SWEPT] then redis.call('ZCARD', c[BASE] .. 'due') end
    if expires then
      redis.call('ZCARD', c[BASE] .. 'expiry:' .. c[KEY])
      redis.call('ZCARD', c[BASE] .. 'redDots:' .. c[KEY])
    end
    local peers = c[PEERS]
    for at = 2, peers and #peers or 0, 2 do redis.call('ZADD', peers[at], 'GT', peers[1], peers[at + 1]) end
    log = c[BASE] .. 'log:' .. c[KEY]
  end
  if red_dot and not expires then red = red + 1 end
  if stream or expires then
    redis.call('XADD', log, place, 'c', int(red), 'r', record, stream and 's' or 'x', stream or expires)
  elseif red == seq then
    redis.call('XADD', log, place, 'r', record)
  else
    redis.call('XADD', log, place, 'c', int(red), 'r', record)
  end
  if c[OWNER] == uid then
    owners[#owners] = seq
  elseif owners then
    owners[#owners + 1], owners[#owners + 2], c[OWNER] = '@' .. uid, seq, uid
  else
    c[OWNERS], c[OWNER], c[LOG] = { '@' .. uid, seq }, uid, log
  end
  c[SEQ], c[RED], c[PUB] = seq, red, c[PUB] + 1
  if expires then
    redis.call('ZADD', c[BASE] .. 'expiry:' .. c[KEY], expires, place)
    if red_dot then redis.call('ZADD', c[BASE] .. 'redDots:' .. c[KEY], int(seq), int(seq) .. ':' .. expires) end
    c[DUE] = math.min(c[DUE] or math.huge, tonumber(expires))
  end
end

-- Writes the head of a channel after at least one publication number was assigned. Enters the
-- channel into `due`. If no limit applies to the channel, it is entered with +inf when its log
-- begins, so that limits that are set later find it.
--   now        Unix ms
--   retention  ms, 0 means no limit
--   keeps      maximum number of messages of a channel, 0 means no limit
local function close_channel(c, now, retention, keeps)
  local seq, owners, pub_text = c[SEQ], c[OWNERS], int(c[PUB])
  if not owners then
    if c[NEWEST] then
      redis.call('HSET', c[HEAD], 'pub', pub_text, 'newest', int(c[NEWEST]))
    else
      redis.call('HSET', c[HEAD], 'pub', pub_text)
    end
    return
  end
  local seq_text = c[PUB] == seq and pub_text or int(seq)
  for at = 2, #owners - 2, 2 do owners[at] = int(owners[at]) end
  owners[#owners] = seq_text
  if c[NEWEST] then owners[#owners + 1], owners[#owners + 2] = 'newest', int(c[NEWEST]) end
  redis.call('HSET', c[HEAD], 'seq', seq_text, 'red', c[RED] == seq and seq_text or int(c[RED]), 'pub', pub_text, unpack(owners))
  if not c[SWEPT] and not c[DUE] then return end
  local due = c[DUE]
  if retention > 0 then due = math.min(due or math.huge, now + retention) end
  if keeps > 0 then
    local last = seq - seq % math.min(MAX_EXCESS, math.ceil(keeps / 10))
    if last > c[FIRST] and last > keeps then due = math.min(due or now, now) end
  end
  if due then
    redis.call('ZADD', c[BASE] .. 'due', 'LT', int(due), c[KEY])
  elseif c[FIRST] == 0 or c[BARE] then
    redis.call('ZADD', c[BASE] .. 'due', 'NX', '+inf', c[KEY])
  end
  if c[BARE] then redis.call('HDEL', c[HEAD], 'bare') end
end
