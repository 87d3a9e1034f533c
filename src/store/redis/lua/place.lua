-- Puts a message into its channel's log: used by every step that stores one.
-- k: keys head, log, own, id and due (the bucket's), exp and dot (needed with `expires` only), peers (list: `peers` of the users of a personal
--    channel where they are in reach, else nil).
-- m: bucket, now, key (of the channel), record, uid, red (whether it has a red dot), retention (ms, 0: for ever), expires (Unix ms, nil: never),
--    keeps (how many messages the channel keeps, 0: all), stream (clientMsgNo of the stream whose message it is, else nil), peers (list: whom to enter
--    into each of k.peers).
-- Returns id, seq, and pub: the number of its publication, which is taken here.
local MAX_SURPLUS = 100 -- messages beyond those that a channel keeps, a tenth of them if that is less: then a sweep is to look at it

local function place_message(k, m)
  local id = next_id(k.id, m.bucket, m.now)
  local head = redis.call('HMGET', k.head, 'seq', 'red', 'pub', 'bare')
  local seq, counted, pub = (tonumber(head[1]) or 0) + 1, tonumber(head[2]) or 0, (tonumber(head[3]) or 0) + 1
  if m.red and not m.expires then counted = counted + 1 end
  local at, text = int(m.now), int(seq)
  redis.call('HSET', k.head, 'seq', text, 'red', int(counted), 'pub', int(pub), 'at', at)
  local entry = { 'i', int(id), 'r', m.record, 'c', int(counted) }
  if m.stream then
    entry[#entry + 1] = 's'
    entry[#entry + 1] = m.stream
  end
  if m.expires then
    local expires = int(m.expires)
    entry[#entry + 1] = 'x'
    entry[#entry + 1] = expires
    redis.call('ZADD', k.exp, expires, text)
    if m.red then redis.call('ZADD', k.dot, text, text .. ':' .. expires) end
  end
  redis.call('XADD', k.log, text .. '-0', unpack(entry))
  redis.call('HSET', k.own, m.uid, text)

  -- When the sweep is to look at the channel. One that keeps all for ever is entered when its log begins, for limits that are set later.
  local due = m.expires
  if m.retention > 0 then due = math.min(due or math.huge, m.now + m.retention) end
  if m.keeps > 0 and seq > m.keeps and seq % math.min(MAX_SURPLUS, math.ceil(m.keeps / 10)) == 0 then
    due = math.min(due or math.huge, m.now)
  end
  if due then
    redis.call('ZADD', k.due, 'LT', int(due), m.key)
  elseif seq == 1 or head[4] then
    redis.call('ZADD', k.due, 'NX', '+inf', m.key)
  end
  if head[4] then redis.call('HDEL', k.head, 'bare') end
  if k.peers then
    for i, peers in ipairs(k.peers) do redis.call('ZADD', peers, 'GT', at, m.peers[i]) end
  end
  return id, seq, pub
end
