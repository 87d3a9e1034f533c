-- Takes expired copies out of an inbox, at most about `most`: those that were to end early, and the oldest. Used before copies are counted.
-- An inbox's copies otherwise end in the order in which they came.
local function expire_copies(copies, ends, now, most)
  local due = redis.call('ZRANGEBYSCORE', ends, '-inf', int(now), 'LIMIT', 0, most)
  for _, seq in ipairs(due) do
    redis.call('XDEL', copies, seq .. '-0')
    redis.call('ZREM', ends, seq)
  end
  for _ = 1, most do
    local first = redis.call('XRANGE', copies, '-', '+', 'COUNT', 1)[1]
    if not first or tonumber(first[2][2]) > now then return end
    redis.call('XDEL', copies, first[1])
  end
end
