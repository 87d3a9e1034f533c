-- Looks through a piece of a list that was replaced for who is no member any more: they leave nothing behind. Harmless to repeat.
-- KEYS  the list, perm, temp, join, pos, own
-- ARGV  where to go on ('0': at the beginning), how many, about
-- Reply { where to go on ('0': that was all), uids that are no members of either kind; some may come twice }
local page = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local gone = {}
for _, at in ipairs(positions(page[2], 0, function(piece) return in_either(KEYS[2], KEYS[3], piece) end)) do
  gone[#gone + 1] = page[2][at]
end
left({ join = KEYS[4], pos = KEYS[5], own = KEYS[6] }, gone)
return { page[1], gone }
