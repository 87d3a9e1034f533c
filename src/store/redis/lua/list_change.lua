-- Changes one of a channel's lists, and records in the head which lists are not empty.
--
-- KEYS   head, then denylist or allowlist
-- ARGV   the two arguments of `members.lua`, both ''
--        uids_json     JSON list without duplicates
--        change        add, remove or replace
--        list_bit      bit of the list in the field `lists`
--        must_be_open  1 if the channel must exist and not be disbanded, else 0
-- Reply  1 if the change was applied; 0 if `must_be_open` is 1 and the channel does not exist or is
--        disbanded
local list = KIND -- the second key
local uids_json, change, list_bit, must_be_open = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if must_be_open == '1' and not is_open(HEAD) then return 0 end
if change == 'replace' then redis.call('UNLINK', list) end
local command = change == 'remove' and 'SREM' or 'SADD'
in_pieces(cjson.decode(uids_json), function(piece) redis.call(command, list, unpack(piece)) end)
local old_lists = tonumber(redis.call('HGET', HEAD, 'lists') or '0')
local lists = bit.band(old_lists, bit.bnot(tonumber(list_bit)))
if redis.call('EXISTS', list) == 1 then lists = lists + list_bit end
if lists == 0 then
  redis.call('HDEL', HEAD, 'lists')
else
  redis.call('HSET', HEAD, 'lists', lists)
end
return 1
