-- Changes fields of the record of a move, unless another process may hold the lease by now or Redis
-- lost the record: what was copied is lost then, too.
-- KEYS  the record; the lease
-- ARGV  the process's token, then fields and values
-- Reply 1: changed; 0: it is not
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
if redis.call('HEXISTS', KEYS[1], 'source') == 0 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
