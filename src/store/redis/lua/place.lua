-- Puts messages into their channel's log: used by every step that stores one. A step has one channel open at a time. To open it reads its head, to
-- place a message adds an entry, to close it writes the head once. All that a message writes to is looked at before anything is written: one that
-- cannot be stored, for a key is of a wrong type or the head lags behind the log, leaves nothing.
-- What stands here in locals would be a table for each channel; Redis is given numbers as text, made once, for it makes text of them more slowly.
local MAX_SURPLUS = 100 -- messages beyond those that a channel keeps, a tenth of them if that is less: then a sweep is to look at it

-- Set by the step: now (Unix ms), retention (ms, 0: for ever), how many messages a channel keeps (0: all).
local now, retention, keeps

-- The open channel: what its keys begin with, its key, its head; of the head seq, red, pub, the channel's record, whether the log was emptied.
local c_base, c_key, c_head, c_seq, c_red, c_pub, c_info, c_is_bare
-- Of a personal channel whose users are in reach: `peers` of one, whom to enter there, the same of the other one if there is one; else nil.
local c_peers
-- Since it was opened: seq and red behind the newest message and that one's id, as text (nil: none); when it was accepted, as text (set by the step,
-- needed with c_peers); who sent what: fields of the head, each followed by a seq as text; whether the log began; when a sweep is to look at it (Unix ms, nil: no matter).
local c_seq_text, c_red_text, c_id_text, c_newest_at, c_owners, c_begins, c_due

local function open_channel(base, key, peers)
  local head = base .. 'head:' .. key
  local found = redis.call('HMGET', head, 'seq', 'red', 'pub', 'bare', 'info')
  c_base, c_key, c_head, c_peers = base, key, head, peers
  c_seq, c_red, c_pub = tonumber(found[1]) or 0, tonumber(found[2]) or 0, tonumber(found[3]) or 0
  c_is_bare, c_info, c_begins = found[4], found[5], c_seq == 0
  c_seq_text, c_due = nil, nil
end

-- Commands that fail where a key is of another type than those that write there take it for.
local function look_at_keys(expires)
  if c_begins or c_is_bare or expires or retention > 0 or keeps > 0 then redis.call('ZCARD', c_base .. 'due') end
  if c_peers then
    for at = 1, #c_peers, 2 do redis.call('ZCARD', c_peers[at]) end
  end
  if expires then
    redis.call('ZCARD', c_base .. 'exp:' .. c_key)
    redis.call('ZCARD', c_base .. 'dot:' .. c_key)
  end
end

local function sooner(due) c_due = math.min(c_due or math.huge, due) end

-- What a message that expires adds, and when the sweep is to look at it.
local function note_expiry(seq, red_dot, expires)
  redis.call('ZADD', c_base .. 'exp:' .. c_key, expires, seq)
  if red_dot then redis.call('ZADD', c_base .. 'dot:' .. c_key, seq, seq .. ':' .. expires) end
  sooner(tonumber(expires))
end

-- red_dot: whether it has one; expires: Unix ms as text, nil: never; stream: clientMsgNo of the stream whose message it is, else nil. Its seq is c_seq
-- then, and the number of its publication c_pub.
local function place_message(id, record, uid, red_dot, expires, stream)
  local seq, counted = c_seq + 1, c_red
  if red_dot and not expires then counted = counted + 1 end
  if expires or not c_seq_text then look_at_keys(expires) end
  local seq_text, id_text = int(seq), int(id)
  local red_text = counted == seq and seq_text or int(counted)
  local log = c_base .. 'log:' .. c_key
  if stream then
    redis.call('XADD', log, seq_text, 'i', id_text, 'r', record, 'c', red_text, 's', stream)
  elseif expires then
    redis.call('XADD', log, seq_text, 'i', id_text, 'r', record, 'c', red_text, 'x', expires)
  else
    redis.call('XADD', log, seq_text, 'i', id_text, 'r', record, 'c', red_text)
  end
  if not c_seq_text then
    c_owners = { '@' .. uid, seq_text }
  else
    local last, owner = #c_owners, '@' .. uid
    if c_owners[last - 1] ~= owner then last = last + 2 end
    c_owners[last - 1], c_owners[last] = owner, seq_text
  end
  c_seq, c_red, c_pub = seq, counted, c_pub + 1
  c_seq_text, c_red_text, c_id_text = seq_text, red_text, id_text
  if expires then note_expiry(seq_text, red_dot, expires) end
  if keeps > 0 and seq > keeps and seq % math.min(MAX_SURPLUS, math.ceil(keeps / 10)) == 0 then sooner(now) end
end

-- Takes the number of a publication that stores nothing.
local function take_pub() c_pub = c_pub + 1 end

-- When the sweep is to look at the channel. One that keeps all for ever is entered when its log begins, for limits that are set later.
local function note_due()
  if retention > 0 then sooner(now + retention) end
  if c_due then
    redis.call('ZADD', c_base .. 'due', 'LT', int(c_due), c_key)
  elseif c_begins or c_is_bare then
    redis.call('ZADD', c_base .. 'due', 'NX', '+inf', c_key)
  end
  if c_is_bare then redis.call('HDEL', c_head, 'bare') end
end

-- The channel took a number at least.
local function close_channel()
  local pub_text = c_pub == c_seq and c_seq_text or int(c_pub)
  if not c_seq_text then
    redis.call('HSET', c_head, 'pub', pub_text)
    return
  end
  redis.call('HSET', c_head, 'seq', c_seq_text, 'red', c_red_text, 'pub', pub_text, unpack(c_owners))
  note_due()
  if c_peers then
    for at = 1, #c_peers, 2 do redis.call('ZADD', c_peers[at], 'GT', c_newest_at, c_peers[at + 1]) end
  end
end
