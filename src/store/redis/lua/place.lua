-- Puts messages into their channel's log: used by every step that stores one. To open a channel
-- reads its head, to place a message adds an entry, to close it writes the head once. All that a
-- message writes to is looked at before anything is written: one that cannot be stored, for a key
-- is of a wrong type or the head lags behind the log by more than one, leaves nothing. Redis is
-- given numbers as text, made once, for it makes text of them more slowly.
local MAX_EXCESS = 100 -- messages beyond those that a channel keeps, a tenth of them if that is less: then a sweep trims it

-- An open channel (`c`) is a list, which is made in one go; what stands where in it.
local BASE = 1 -- what its keys begin with
local KEY = 2
local HEAD = 3 -- its name; from it seq, red, pub, bare (whether the log was emptied), info (the channel's record) and lists
local PEERS = 4
local FIRST = 5 -- seq when it was opened
local SEQ = 6
local RED = 7
local PUB = 8
local BARE = 9
local INFO = 10
local SWEPT = 11 -- whether `due` may be written
local NEWEST = 12 -- only where it is apart, else false: id of its newest message, stored or not (0: not known), for the step to keep up
local LOG = 13 -- its name, once a message was placed
local OWNERS = 14 -- who sent what: fields of the head, each followed by a seq
local OWNER = 15 -- who sent the last one
local LISTS = 16 -- which lists of it are not empty, false: none
local DUE = 17 -- when a sweep is to look at the channel (Unix ms), false: no matter

-- base: what the keys of the channel begin with. peers, of a personal channel whose users are in
-- reach, else false: now as text, `peers` of one user, whom to enter there, and the same of the
-- other one if there is one. is_limited: whether messages leave history by age or number. is_apart:
-- it is a personal channel whose users are in other slots.
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

-- red_dot: whether it has one; expires: Unix ms as text, else nil or false; stream: clientMsgNo of
-- the stream whose message it is, else nil. Its seq is `c[SEQ]` then, and the number of its
-- publication `c[PUB]`.
local function place_message(c, place, record, uid, red_dot, expires, stream)
  local seq, red, log, owners = c[SEQ] + 1, c[RED], c[LOG], c[OWNERS]
  if expires or not log then
    -- These fail where a key is of another type than those that write there take it for.
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

-- The channel took a number at least. One that keeps all for ever is entered into `due` when its
-- log begins, for limits that are set later. now: Unix ms; retention: ms, 0: for ever; keeps: how
-- many messages a channel keeps, 0: all.
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
