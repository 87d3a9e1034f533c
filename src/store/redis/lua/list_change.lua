-- Changes one of a channel's lists, and records in the head which lists are not empty.
--
-- KEYS   1  head
--        2  denylist or allowlist
-- ARGV   1  always ''
--        2  always ''
--        3  uids   JSON list without duplicates
--        4  add, remove or replace
--        5  bit of the list in the field `lists`
--        6  1 if the channel must exist and not be disbanded, else 0
-- Reply  1 if the change was applied; 0 if ARGV[6] is 1 and the channel does not exist or is
--        disbanded
if ARGV[6] == '1' and not is_open(HEAD) then return 0 end
local list, change = KIND, ARGV[4]
if change == 'replace' then redis.call('UNLINK', list) end
local command = change == 'remove' and 'SREM' or 'SADD'
in_pieces(cjson.decode(ARGV[3]), function(piece) redis.call(command, list, unpack(piece)) end)
local old_lists = tonumber(redis.call('HGET', HEAD, 'lists') or '0')
local lists = bit.band(old_lists, bit.bnot(tonumber(ARGV[5])))
if redis.call('EXISTS', list) == 1 then lists = lists + ARGV[5] end
if lists == 0 then
  redis.call('HDEL', HEAD, 'lists')
else
  redis.call('HSET', HEAD, 'lists', lists)
end
return 1
