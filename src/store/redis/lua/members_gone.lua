-- Looks through a piece of a list that was replaced for who is no member any more: they leave nothing behind. Members are taken off the list: of these
-- whatever ends their membership tells. Harmless to repeat.
-- KEYS  the list, perm, temp, join, pos, own
-- ARGV  where to go on ('0': at the beginning), how many, about
-- Reply { where to go on ('0': that was all), uids that are no members of either kind; some may come twice }
local page = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local gone, members = {}, {}
in_pieces(page[2], function(piece)
  for at, answer in ipairs(in_either(KEYS[2], KEYS[3], piece)) do
    local list = answer == 0 and gone or members
    list[#list + 1] = piece[at]
  end
end)
left({ join = KEYS[4], pos = KEYS[5], own = KEYS[6] }, gone)
in_pieces(members, function(piece) redis.call('SREM', KEYS[1], unpack(piece)) end)
return { page[1], gone }
