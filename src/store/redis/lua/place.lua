-- Puts messages into their channel's log: used by every step that stores one. A step has one channel open at a time. To open it reads its head, to
-- place a message adds an entry, to close it writes the head once. All that a message writes to is looked at before anything is written: one that
-- cannot be stored, for a key is of a wrong type or the head lags behind the log by more than one, leaves nothing.
-- The channel stands in locals, which cost less than a table. Redis is given numbers as text, made once, for it makes text of them more slowly.
local call = redis.call
local MAX_SURPLUS = 100 -- messages beyond those that a channel keeps, a tenth of them if that is less: then a sweep is to look at it

-- Set by the step: now (Unix ms), retention (ms, 0: for ever), how many messages a channel keeps (0: all).
local now, retention, keeps

-- The open channel: what its keys begin with, its key, its head; of the head seq, red, pub, the channel's record, whether the log was emptied.
local c_base, c_key, c_head, c_seq, c_red, c_pub, c_info, c_is_bare
-- Of a personal channel whose users are in reach: `peers` of one, whom to enter there, the same of the other one if there is one; else nil.
local c_peers
-- Since it was opened: whether a message was placed; name of the log; whether it began; who sent what: fields of the head, each followed by a seq, of whom the last one is, and how many there are; when a
-- sweep is to look at the channel (Unix ms, nil: no matter).
local c_is_stored, c_log, c_begins, c_owners, c_owner, c_last, c_due

local function open_channel(base, key, peers)
  local head = base .. 'head:' .. key
  local found = call('HMGET', head, 'seq', 'red', 'pub', 'bare', 'info')
  c_base, c_key, c_head, c_peers = base, key, head, peers
  c_seq, c_red, c_pub = tonumber(found[1]) or 0, tonumber(found[2]) or 0, tonumber(found[3]) or 0
  c_is_bare, c_info, c_begins = found[4], found[5], c_seq == 0
  c_is_stored, c_due = false, nil
end

-- red_dot: whether it has one; expires: Unix ms as text, nil: never; stream: clientMsgNo of the stream whose message it is, else nil. Its seq is c_seq
-- then, and the number of its publication c_pub.
local function place_message(id, place, record, uid, red_dot, expires, stream)
  if expires or not c_is_stored then
    -- These fail where a key is of another type than those that write there take it for.
    if c_begins or c_is_bare or expires or retention > 0 or keeps > 0 then call('ZCARD', c_base .. 'due') end
    if expires then
      call('ZCARD', c_base .. 'expiry:' .. c_key)
      call('ZCARD', c_base .. 'redDots:' .. c_key)
    end
    for at = 1, c_peers and #c_peers or 0, 2 do call('ZADD', c_peers[at], 'GT', int(now), c_peers[at + 1]) end
    if not c_is_stored then c_log, c_owners, c_owner, c_last = c_base .. 'log:' .. c_key, { '@' .. uid, 0 }, uid, 2 end
  end
  local seq, counted = c_seq + 1, c_red
  if red_dot and not expires then counted = counted + 1 end
  if stream or expires then
    call('XADD', c_log, place, 'c', int(counted), 'r', record, stream and 's' or 'x', stream or expires)
  elseif counted == seq then
    call('XADD', c_log, place, 'r', record)
  else
    call('XADD', c_log, place, 'c', int(counted), 'r', record)
  end
  if c_owner ~= uid then
    c_owner, c_last = uid, c_last + 2
    c_owners[c_last - 1] = '@' .. uid
  end
  c_owners[c_last] = seq
  c_seq, c_red, c_pub, c_is_stored = seq, counted, c_pub + 1, true
  if expires then
    call('ZADD', c_base .. 'expiry:' .. c_key, expires, place)
    if red_dot then call('ZADD', c_base .. 'redDots:' .. c_key, int(seq), int(seq) .. ':' .. expires) end
    c_due = math.min(c_due or math.huge, tonumber(expires))
  end
  if keeps > 0 and seq > keeps and seq % math.min(MAX_SURPLUS, math.ceil(keeps / 10)) == 0 then c_due = math.min(c_due or now, now) end
end

-- The channel took a number at least. One that keeps all for ever is entered into `due` when its log begins, for limits that are set later.
local function close_channel()
  local pub_text = int(c_pub)
  if not c_is_stored then
    call('HSET', c_head, 'pub', pub_text)
    return
  end
  for i = 2, c_last, 2 do c_owners[i] = int(c_owners[i]) end
  local seq_text = c_pub == c_seq and pub_text or int(c_seq)
  call('HSET', c_head, 'seq', seq_text, 'red', c_red == c_seq and seq_text or int(c_red), 'pub', pub_text, unpack(c_owners))
  if retention > 0 then c_due = math.min(c_due or math.huge, now + retention) end
  if c_due then
    call('ZADD', c_base .. 'due', 'LT', int(c_due), c_key)
  elseif c_begins or c_is_bare then
    call('ZADD', c_base .. 'due', 'NX', '+inf', c_key)
  end
  if c_is_bare then call('HDEL', c_head, 'bare') end
end
