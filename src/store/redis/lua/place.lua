-- Puts messages into their channel's log: used by every step that stores one. To open a channel reads its head, to place a message adds an entry, to close
-- it writes the head once. All that a message writes to is looked at before anything is written: one that cannot be stored, for a key is of a wrong type
-- or the head lags behind the log by more than one, leaves nothing. Redis is given numbers as text, made once, for it makes text of them more slowly.
local MAX_SURPLUS = 100 -- messages beyond those that a channel keeps, a tenth of them if that is less: then a sweep is to look at it

-- base: what the keys of the channel begin with. peers, of a personal channel whose users are in reach, else nil: now as text, `peers` of one user, whom to
-- enter there, and the same of the other one if there is one. is_limited: whether messages leave history by age or number. is_apart: it is a personal
-- channel whose users are in other slots.
-- The channel: of its head `seq`, `red`, `pub`, `info` (its record) and `bare` (the log was emptied); `first`: seq when it was opened; `is_swept`: `due` may be
-- written; `newest`, only where it is apart: id of its newest message, stored or not (0: not known), for the step to keep up. Once a message was placed also `log`, `owners` (who sent what: fields of the head, each followed by a seq), `owner` (of the last seq), and `due`
-- if a sweep is to look at it (Unix ms).
local function open_channel(base, key, peers, is_limited, is_apart)
  local head, found = base .. 'head:' .. key, nil
  if is_apart then
    found = redis.call('HMGET', head, 'seq', 'red', 'pub', 'bare', 'info', 'newest')
  else
    found = redis.call('HMGET', head, 'seq', 'red', 'pub', 'bare', 'info')
  end
  local seq_text, red_text, pub_text, bare = found[1], found[2], found[3], found[4]
  local seq = tonumber(seq_text) or 0
  return {
    base = base, key = key, head = head, peers = peers, first = seq, seq = seq, log = false, owners = false, owner = false,
    red = red_text == seq_text and seq or tonumber(red_text) or 0, pub = pub_text == seq_text and seq or tonumber(pub_text) or 0,
    bare = bare, info = found[5], is_swept = is_limited or bare or seq == 0, newest = is_apart and (tonumber(found[6]) or 0),
  }
end

-- red_dot: whether it has one; expires: Unix ms as text, else nil or false; stream: clientMsgNo of the stream whose message it is, else nil. Its seq is
-- `c.seq` then, and the number of its publication `c.pub`.
local function place_message(c, place, record, uid, red_dot, expires, stream)
  local seq, red, log, owners = c.seq + 1, c.red, c.log, c.owners
  if expires or not log then
    -- These fail where a key is of another type than those that write there take it for.
    if expires or c.is_swept then redis.call('ZCARD', c.base .. 'due') end
    if expires then
      redis.call('ZCARD', c.base .. 'expiry:' .. c.key)
      redis.call('ZCARD', c.base .. 'redDots:' .. c.key)
    end
    local peers = c.peers
    for at = 2, peers and #peers or 0, 2 do redis.call('ZADD', peers[at], 'GT', peers[1], peers[at + 1]) end
    log = c.base .. 'log:' .. c.key
  end
  if red_dot and not expires then red = red + 1 end
  if stream or expires then
    redis.call('XADD', log, place, 'c', int(red), 'r', record, stream and 's' or 'x', stream or expires)
  elseif red == seq then
    redis.call('XADD', log, place, 'r', record)
  else
    redis.call('XADD', log, place, 'c', int(red), 'r', record)
  end
  if c.owner == uid then
    owners[#owners] = seq
  elseif owners then
    owners[#owners + 1], owners[#owners + 2], c.owner = '@' .. uid, seq, uid
  else
    c.owners, c.owner, c.log = { '@' .. uid, seq }, uid, log
  end
  c.seq, c.red, c.pub = seq, red, c.pub + 1
  if expires then
    redis.call('ZADD', c.base .. 'expiry:' .. c.key, expires, place)
    if red_dot then redis.call('ZADD', c.base .. 'redDots:' .. c.key, int(seq), int(seq) .. ':' .. expires) end
    c.due = math.min(c.due or math.huge, tonumber(expires))
  end
end

-- The channel took a number at least. One that keeps all for ever is entered into `due` when its log begins, for limits that are set later.
-- now: Unix ms; retention: ms, 0: for ever; keeps: how many messages a channel keeps, 0: all.
local function close_channel(c, now, retention, keeps)
  local seq, owners, pub_text = c.seq, c.owners, int(c.pub)
  if c.newest then redis.call('HSET', c.head, 'newest', int(c.newest)) end
  if not owners then
    redis.call('HSET', c.head, 'pub', pub_text)
    return
  end
  local seq_text = c.pub == seq and pub_text or int(seq)
  for at = 2, #owners - 2, 2 do owners[at] = int(owners[at]) end
  owners[#owners] = seq_text
  redis.call('HSET', c.head, 'seq', seq_text, 'red', c.red == seq and seq_text or int(c.red), 'pub', pub_text, unpack(owners))
  if not c.is_swept and not c.due then return end
  local due = c.due
  if retention > 0 then due = math.min(due or math.huge, now + retention) end
  if keeps > 0 then
    local surplus = math.min(MAX_SURPLUS, math.ceil(keeps / 10))
    local last = seq - seq % surplus
    if last > c.first and last > keeps then due = math.min(due or now, now) end
  end
  if due then
    redis.call('ZADD', c.base .. 'due', 'LT', int(due), c.key)
  elseif c.first == 0 or c.bare then
    redis.call('ZADD', c.base .. 'due', 'NX', '+inf', c.key)
  end
  if c.bare then redis.call('HDEL', c.head, 'bare') end
end
