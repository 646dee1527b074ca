-- Reads a page of the index, the soonest to expire first, and removes expired leases from it.
-- KEYS  1 index  2 fences
-- ARGV  1 offset  2 how many names to read  3 prefix of the names to return
-- Returns {now in ms, how many names were read, {name, expiry in ms, ...}}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local over = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - 1, 'LIMIT', 0, 1000)
if #over > 0 then
  redis.call('ZREM', KEYS[1], unpack(over))
  redis.call('HDEL', KEYS[2], unpack(over))
end
-- By rank: with an offset, ZRANGE BYSCORE would walk over all members before it.
local first = redis.call('ZCOUNT', KEYS[1], '-inf', now - 1) + ARGV[1]
local found = redis.call('ZRANGE', KEYS[1], first, first + ARGV[2] - 1, 'WITHSCORES')
local read, prefix = #found / 2, ARGV[3]
-- Mostly there is no prefix: to look at each name then would be a fifth of the script's time.
if prefix ~= '' then
  local some = {}
  for i = 1, #found, 2 do
    if string.sub(found[i], 1, #prefix) == prefix then
      some[#some + 1], some[#some + 2] = found[i], found[i + 1]
    end
  end
  found = some
end
return {now, read, found}
