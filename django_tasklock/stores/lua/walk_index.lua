-- Reads the names that follow another one in the index, the soonest to expire first.
-- KEYS  1 index  2 fences
-- ARGV  1 how many names to read  2 prefix of the names to return
--       3 the name that was read last  4 its expiry in ms, or '' to begin
--       5 '1' to return the fences too
-- Returns {now in ms, how many names were read, the last one, its expiry, {name, ...},
-- {expiry in ms, ...}, {fence or false, ...}}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local first = redis.call('ZCOUNT', KEYS[1], '-inf', now - 1)
if ARGV[4] ~= '' then
  local after
  if redis.call('ZSCORE', KEYS[1], ARGV[3]) == ARGV[4] then
    after = redis.call('ZRANK', KEYS[1], ARGV[3]) + 1
  else
    -- It has gone, or moved. Those that expire with it are read again.
    after = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[4])
  end
  if after > first then first = after end
end
local found = redis.call('ZRANGE', KEYS[1], first, first + ARGV[1] - 1, 'WITHSCORES')
local names, ends, prefix = {}, {}, ARGV[2]
for i = 1, #found, 2 do
  if prefix == '' or string.sub(found[i], 1, #prefix) == prefix then
    names[#names + 1] = found[i]
    ends[#ends + 1] = found[i + 1]
  end
end
local fences = {}
if ARGV[5] == '1' then
  for at = 1, #names, 1000 do
    local some = redis.call('HMGET', KEYS[2], unpack(names, at, math.min(at + 999, #names)))
    for i = 1, #some do fences[#fences + 1] = some[i] end
  end
end
return {now, #found / 2, found[#found - 1] or '', found[#found] or '', names, ends, fences}
