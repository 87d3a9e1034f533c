-- Puts messages into their channel's log: used by every step that stores one. A step opens a channel, which reads its head, places any number of
-- messages, and closes it, which writes the head once: messages that a step could not place leave nothing.
-- k: keys head, log, own and due (the bucket's), exp and dot (needed with `expires` only), peers (list: `peers` of the users of a personal channel where
--    they are in reach, else nil).
local MAX_SURPLUS = 100 -- messages beyond those that a channel keeps, a tenth of them if that is less: then a sweep is to look at it

-- c: key (of the channel), now, retention (ms, 0: for ever), keeps (how many messages the channel keeps, 0: all), peers (list: whom to enter into each
-- of k.peers). newest_at: when its newest message was accepted, where that was not now.
local function open_channel(k, c)
  local head = redis.call('HMGET', k.head, 'seq', 'red', 'pub', 'bare')
  c.k, c.seq, c.red, c.pub, c.bare = k, tonumber(head[1]) or 0, tonumber(head[2]) or 0, tonumber(head[3]) or 0, head[4]
  c.owners, c.is_open, c.newest_at = {}, true, c.now
  return c
end

local function sooner(c, due) c.due = math.min(c.due or math.huge, due) end

-- What a message that expires adds, and when the sweep is to look at it.
local function note_expiry(c, m)
  redis.call('ZADD', c.k.exp, m.expires, c.seq)
  if m.red then redis.call('ZADD', c.k.dot, c.seq, c.seq .. ':' .. int(m.expires)) end
  sooner(c, m.expires)
end

-- m: id, record, uid, red (whether it has a red dot), expires (Unix ms, nil: never), stream (clientMsgNo of the stream whose message it is, else nil).
-- Returns seq, and pub: the number of its publication, which is taken here.
-- Numbers are given to Redis as they are, for each string that Lua makes costs: they are below 2^53, which Redis writes without exponent.
local function place_message(c, m)
  local seq, counted, at = c.seq + 1, c.red, c.seq + 1 .. '-0'
  if m.red and not m.expires then counted = counted + 1 end
  if m.stream then
    redis.call('XADD', c.k.log, at, 'i', m.id, 'r', m.record, 'c', counted, 's', m.stream)
  elseif m.expires then
    redis.call('XADD', c.k.log, at, 'i', m.id, 'r', m.record, 'c', counted, 'x', m.expires)
  else
    redis.call('XADD', c.k.log, at, 'i', m.id, 'r', m.record, 'c', counted)
  end
  c.seq, c.red, c.pub, c.stored = seq, counted, c.pub + 1, true
  if seq == 1 then c.begins = true end
  local owners = c.owners
  local last = #owners
  if owners[last - 1] == m.uid then
    owners[last] = seq
  else
    owners[last + 1], owners[last + 2] = m.uid, seq
  end
  if m.expires then note_expiry(c, m) end
  local keeps = c.keeps
  if keeps > 0 and seq > keeps and seq % math.min(MAX_SURPLUS, math.ceil(keeps / 10)) == 0 then sooner(c, c.now) end
  return seq, c.pub
end

-- Takes the number of a publication that stores nothing.
local function take_pub(c)
  c.pub = c.pub + 1
  return c.pub
end

-- When the sweep is to look at the channel. One that keeps all for ever is entered when its log begins, for limits that are set later.
local function note_due(c)
  if c.retention > 0 then sooner(c, c.now + c.retention) end
  if c.due then
    redis.call('ZADD', c.k.due, 'LT', c.due, c.key)
  elseif c.begins or c.bare then
    redis.call('ZADD', c.k.due, 'NX', '+inf', c.key)
  end
  if c.bare then redis.call('HDEL', c.k.head, 'bare') end
end

local function close_channel(c)
  local k = c.k
  if not c.stored then
    redis.call('HSET', k.head, 'pub', c.pub)
    return
  end
  redis.call('HSET', k.head, 'seq', c.seq, 'red', c.red, 'pub', c.pub, 'at', c.newest_at)
  redis.call('HSET', k.own, unpack(c.owners))
  note_due(c)
  if k.peers then
    for i, peers in ipairs(k.peers) do redis.call('ZADD', peers, 'GT', c.newest_at, c.peers[i]) end
  end
end
