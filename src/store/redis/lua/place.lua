-- Puts messages into their channel's log: used by every step that stores one. A step has one channel open at a time. To open it reads its head, to
-- place a message adds an entry, to close it writes the head once. All that a message writes to is looked at before anything is written: one that
-- cannot be stored, for a key is of a wrong type or the head lags behind the log, leaves nothing.
-- The channel stands in locals, which cost less than a table. Redis is given numbers as text, made once, for it makes text of them more slowly.
local MAX_SURPLUS = 100 -- messages beyond those that a channel keeps, a tenth of them if that is less: then a sweep is to look at it

-- Set by the step: now (Unix ms), retention (ms, 0: for ever), how many messages a channel keeps (0: all).
local now, retention, keeps

-- The open channel: what its keys begin with, its key, its head; of the head seq, red, pub, the channel's record, whether the log was emptied.
local c_base, c_key, c_head, c_seq, c_red, c_pub, c_info, c_is_bare
-- Of a personal channel whose users are in reach: `peers` of one, whom to enter there, the same of the other one if there is one; else nil.
local c_peers
-- Since it was opened: seq of the newest message as text (nil: none); when that was accepted, as text (set by the step, needed with c_peers); name of the
-- log; whether it began; who sent what: fields of the head, each followed by a seq as text, of whom the last one is, and how many there are; when a
-- sweep is to look at the channel (Unix ms, nil: no matter).
local c_seq_text, c_newest_at, c_log, c_begins, c_owners, c_owner, c_last, c_due

local function open_channel(base, key, peers)
  local head = base .. 'head:' .. key
  local found = redis.call('HMGET', head, 'seq', 'red', 'pub', 'bare', 'info')
  c_base, c_key, c_head, c_peers = base, key, head, peers
  c_seq, c_red, c_pub = tonumber(found[1]) or 0, tonumber(found[2]) or 0, tonumber(found[3]) or 0
  c_is_bare, c_info, c_begins = found[4], found[5], c_seq == 0
  c_seq_text, c_due = nil, nil
end

-- red_dot: whether it has one; expires: Unix ms as text, nil: never; stream: clientMsgNo of the stream whose message it is, else nil. Its seq is c_seq
-- then, and the number of its publication c_pub.
local function place_message(id, record, uid, red_dot, expires, stream)
  if expires or not c_seq_text then
    -- These fail where a key is of another type than those that write there take it for.
    if c_begins or c_is_bare or expires or retention > 0 or keeps > 0 then redis.call('ZCARD', c_base .. 'due') end
    if expires then
      redis.call('ZCARD', c_base .. 'exp:' .. c_key)
      redis.call('ZCARD', c_base .. 'dot:' .. c_key)
    end
    for at = 1, c_peers and #c_peers or 0, 2 do redis.call('ZCARD', c_peers[at]) end
    if not c_seq_text then c_log, c_owners, c_owner, c_last = c_base .. 'log:' .. c_key, {}, nil, 0 end
  end
  local seq, counted = c_seq + 1, c_red
  if red_dot and not expires then counted = counted + 1 end
  local seq_text, facts = int(seq), struct.pack('>dI4', id, counted)
  if stream then
    redis.call('XADD', c_log, seq_text, 'm', facts, 'r', record, 's', stream)
  elseif expires then
    redis.call('XADD', c_log, seq_text, 'm', facts, 'r', record, 'x', expires)
  else
    redis.call('XADD', c_log, seq_text, 'm', facts, 'r', record)
  end
  if c_owner ~= uid then
    c_owner, c_last = uid, c_last + 2
    c_owners[c_last - 1] = '@' .. uid
  end
  c_owners[c_last] = seq_text
  c_seq, c_red, c_pub, c_seq_text = seq, counted, c_pub + 1, seq_text
  if expires then
    redis.call('ZADD', c_base .. 'exp:' .. c_key, expires, seq_text)
    if red_dot then redis.call('ZADD', c_base .. 'dot:' .. c_key, seq_text, seq_text .. ':' .. expires) end
    c_due = math.min(c_due or math.huge, tonumber(expires))
  end
  if keeps > 0 and seq > keeps and seq % math.min(MAX_SURPLUS, math.ceil(keeps / 10)) == 0 then c_due = math.min(c_due or now, now) end
end

-- The channel took a number at least. One that keeps all for ever is entered into `due` when its log begins, for limits that are set later.
local function close_channel()
  local pub_text = c_pub == c_seq and c_seq_text or int(c_pub)
  if not c_seq_text then
    redis.call('HSET', c_head, 'pub', pub_text)
    return
  end
  redis.call('HSET', c_head, 'seq', c_seq_text, 'red', c_red == c_seq and c_seq_text or int(c_red), 'pub', pub_text, unpack(c_owners))
  if retention > 0 then c_due = math.min(c_due or math.huge, now + retention) end
  if c_due then
    redis.call('ZADD', c_base .. 'due', 'LT', int(c_due), c_key)
  elseif c_begins or c_is_bare then
    redis.call('ZADD', c_base .. 'due', 'NX', '+inf', c_key)
  end
  if c_is_bare then redis.call('HDEL', c_head, 'bare') end
  for at = 1, c_peers and #c_peers or 0, 2 do redis.call('ZADD', c_peers[at], 'GT', c_newest_at, c_peers[at + 1]) end
end
