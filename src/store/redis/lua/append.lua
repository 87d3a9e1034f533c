-- Appends a message to a channel, unless it is a retry, and tells the channel's topics.
-- KEYS  1 head, 2 log, 3 own, 4 id, 5 due, 6 exp, 7 dot, 8 dd (read with DEDUPE only), then `peers` of the users of a personal channel in reach
-- ARGV  1 bucket, 2 now, 3 channel key, 4 record, 5 extra, 6 uid, 7 sum of KEEP, RED_DOT and DEDUPE, 8 Unix ms when it expires (0: never),
--       9 ms for which clientMsgNo is remembered, 10 retention (ms, 0: for ever), 11 how many messages the channel
--       keeps (0: all), then whom to enter into each `peers`, then topics
-- Reply {messageId, messageSeq (0: not kept), pub}; of a retry those of the first message and a 1
local KEEP, RED_DOT, DEDUPE = 1, 2, 4
local BEFORE_PEERS, PEERS = 8, 11 -- KEYS and ARGV before them
local flags, now = tonumber(ARGV[7]), tonumber(ARGV[2])
local dedupes = bit.band(flags, DEDUPE) ~= 0

if dedupes then
  local id, seq, pub = remembered(KEYS[8], now, tonumber(ARGV[9]))
  if id then return { id, seq, pub, 1 } end
end

local peers = #KEYS - BEFORE_PEERS
local id, seq, pub = nil, 0, nil
if bit.band(flags, KEEP) ~= 0 then
  local keys = { head = KEYS[1], log = KEYS[2], own = KEYS[3], id = KEYS[4], due = KEYS[5], exp = KEYS[6], dot = KEYS[7] }
  local message = {
    bucket = tonumber(ARGV[1]),
    now = now,
    key = ARGV[3],
    record = ARGV[4],
    uid = ARGV[6],
    red = bit.band(flags, RED_DOT) ~= 0,
    expires = ARGV[8] ~= '0' and tonumber(ARGV[8]) or nil,
    retention = tonumber(ARGV[10]),
    keeps = tonumber(ARGV[11]),
  }
  if peers > 0 then
    keys.peers = { KEYS[BEFORE_PEERS + 1], KEYS[BEFORE_PEERS + 2] }
    message.peers = { ARGV[PEERS + 1], ARGV[PEERS + 2] }
  end
  id, seq, pub = place_message(keys, message)
else
  id = next_id(KEYS[4], tonumber(ARGV[1]), now)
  pub = redis.call('HINCRBY', KEYS[1], 'pub', 1)
end
if dedupes then
  remember(KEYS[8], { now = now, window = tonumber(ARGV[9]), id = id, seq = seq, pub = pub })
end
tell(PEERS + peers + 1, message_frame(pub, id, seq, ARGV[4], ARGV[5]))
return { id, seq, pub }
