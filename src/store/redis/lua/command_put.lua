-- Puts pending copies of a broker command into inboxes. Each inbox gets one copy, however often the
-- script is repeated within an hour. On a Redis Cluster each call is for one user.
--
-- KEYS   for each user: inboxSeq, inbox, inboxExpiry, inboxSenders, inboxShares,
--        inboxOrder, inboxIds
-- ARGV   1 to 9  see `inbox.lua`
--        10  messageId
--        then uid and topic of each user
-- Reply  1  number of copies that full inboxes dropped
--        2  error of the first user who got no copy, or ''

-- Time for which `inboxIds` remembers a copy. Sweeps skip commands that are older than this.
local REMEMBERED_MS = 3600000
-- Added to the time to live of `inboxIds`, because ARGV[1] and the server's clock may differ.
local CLOCK_SKEW_MS = 60000
local MIN_REMEMBERED = 1000

-- Returns what `put_copy` returns, or 0 and 0 if the user already had a copy.
local function put_once(id, keys, uid, topic)
  local ids, now = KEYS[keys + 6], tonumber(ARGV[1])
  local is_new = redis.call('ZADD', ids, int(now), int(id)) == 1
  redis.call('PEXPIRE', ids, REMEMBERED_MS + CLOCK_SKEW_MS)
  if not is_new then return 0, 0 end
  local is_put, seq, dropped = pcall(put_copy, id, keys, uid, topic)
  if not is_put then
    redis.call('ZREM', ids, int(id))
    error(seq, 0)
  end
  if seq % TIDY_EVERY == 0 then
    redis.call('ZREMRANGEBYSCORE', ids, '-inf', int(now - REMEMBERED_MS))
    redis.call('ZREMRANGEBYRANK', ids, 0, -1 - math.max(tonumber(ARGV[4]), MIN_REMEMBERED))
  end
  return seq, dropped
end

local dropped, _, failure = put_copies(put_once, tonumber(ARGV[10]), { first = 11, last = #ARGV }, 1, 7)
return { dropped, failure }
