-- Reads the names that follow another one in the index, the soonest to expire first.
-- KEYS  1 index  2 fences
-- ARGV  1 how many names to read  2 prefix of the names to return
--       3 the name that was read last  4 its expiry in ms, or '' to begin
--       5 '1' to return the expiries too  6 '1' to return the fences too
--       7 '1' to return the names as a list
-- Returns {now in ms, how many names were read, the last one, its expiry, {expiry in ms, ...},
-- {fence or false, ...}, how many names follow, the names: one text with spaces between, or a list}.
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
local prefix, names, ends, fences, find = ARGV[2], {}, {}, {}, string.find
local read, last, its_end
if ARGV[5] == '1' then
  local found = redis.call('ZRANGE', KEYS[1], first, first + ARGV[1] - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    if prefix == '' or find(found[i], prefix, 1, true) == 1 then
      names[#names + 1] = found[i]
      ends[#ends + 1] = found[i + 1]
    end
  end
  read, last, its_end = #found / 2, found[#found - 1], found[#found]
else
  -- With the expiries this takes three times as long.
  local found = redis.call('ZRANGE', KEYS[1], first, first + ARGV[1] - 1)
  read, last = #found, found[#found]
  if prefix == '' then
    names = found
  else
    for i = 1, #found do
      if find(found[i], prefix, 1, true) == 1 then names[#names + 1] = found[i] end
    end
  end
  its_end = last and redis.call('ZSCORE', KEYS[1], last)
end
if ARGV[6] == '1' then
  for at = 1, #names, 1000 do
    local some = redis.call('HMGET', KEYS[2], unpack(names, at, math.min(at + 999, #names)))
    for i = 1, #some do fences[#fences + 1] = some[i] end
  end
end
-- One text: to read a thousand short ones takes both sides longer than all the rest.
local found = ARGV[7] == '1' and names or table.concat(names, ' ')
return {now, read, last or '', its_end or '', ends, fences, #names, found}
