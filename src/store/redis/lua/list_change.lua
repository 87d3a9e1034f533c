-- Changes one of the lists of a channel, and notes in its head which of them are not empty.
-- KEYS  head, the list
-- ARGV  '', '', JSON list of uids, each once; add, remove or replace; bit of the list in `lists`;
--   1: only of a channel that is there and not disbanded, else 0
-- Reply 1: done, 0: no such channel, or disbanded
if ARGV[6] == '1' and not is_open(HEAD) then return 0 end
local list, how = KIND, ARGV[4]
if how == 'replace' then redis.call('UNLINK', list) end
local command = how == 'remove' and 'SREM' or 'SADD'
in_pieces(cjson.decode(ARGV[3]), function(piece) redis.call(command, list, unpack(piece)) end)
local before = tonumber(redis.call('HGET', HEAD, 'lists') or '0')
local lists = bit.band(before, bit.bnot(tonumber(ARGV[5])))
if redis.call('EXISTS', list) == 1 then lists = lists + ARGV[5] end
if lists == 0 then
  redis.call('HDEL', HEAD, 'lists')
else
  redis.call('HSET', HEAD, 'lists', lists)
end
return 1
