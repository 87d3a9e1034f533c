-- Puts copies of a noted command into inboxes, into each once however often the step is repeated
-- within an hour. Cluster: one user at a time.
-- KEYS  of each user inboxSeq, inbox, inboxExpiry, inboxIds. ARGV: as of `put_copy`; 8 messageId;
--   then uid and topic of each user
-- Reply {copies that left full inboxes, error of the first user that it failed for ('': none)}
local KNOWN_MS = 3600000 -- since the last try: sweeps try for as long
local SPACE_MS = 60000 -- clocks of nodes and Redis may differ
local LEAST_KNOWN = 1000

local function put_once(id, keys, uid, topic)
  local ids, now = KEYS[keys + 3], tonumber(ARGV[1])
  local is_new = redis.call('ZADD', ids, int(now), int(id)) == 1
  redis.call('PEXPIRE', ids, KNOWN_MS + SPACE_MS)
  if not is_new then return 0, 0 end
  local done, seq, dropped = pcall(put_copy, id, keys, uid, topic)
  if not done then
    redis.call('ZREM', ids, int(id))
    error(seq, 0)
  end
  if seq % TIDY_EVERY == 0 then
    redis.call('ZREMRANGEBYSCORE', ids, '-inf', int(now - KNOWN_MS))
    redis.call('ZREMRANGEBYRANK', ids, 0, -1 - math.max(tonumber(ARGV[4]), LEAST_KNOWN))
  end
  return seq, dropped
end

local dropped, _, cause = put_copies(put_once, tonumber(ARGV[8]), { first = 9, last = #ARGV }, 1, 4)
return { dropped, cause }
