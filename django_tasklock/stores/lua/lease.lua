-- Included where a lease is granted, with `index`, `fences`, `name`, `ttl` (in ms; '' for ever) and
-- `least` (nil, or the least that the fence may be). Makes `fence`, and writes fences and index.
-- A fence is the server's clock in us, but always greater than the last one of the store. So it grows
-- even if the clock steps back, or Redis has lost its data.
-- Numbers are texts: to write a number as one takes Redis thousands of instructions.
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local fence, last = now, redis.call('HGET', fences, '')
if least and tonumber(least) > tonumber(fence) then fence = least end
-- Numbers of 16 digits, as all clocks until the year 2286, compare as texts do.
if last and not (#last == 16 and #fence == 16 and last < fence) then
  -- Lua's numbers are not exact beyond it. No fence is as large before the year 2255.
  local MAX_FENCE = 2 ^ 53 - 1
  last = tonumber(last) or 0
  if last >= MAX_FENCE then last = 0 end -- Somebody else wrote it.
  if last >= tonumber(fence) then fence = string.format('%.0f', last + 1) end
end
if string.sub(name, 1, 1) ~= ' ' then -- Else it only tries whether a lock can be had.
  redis.call('HSET', fences, '', fence, name, fence)
  redis.call('ZADD', index, ttl == '' and '+inf' or string.format('%d', now / 1000 + ttl), name)
  -- A row whose fence is not between the first and the last one was claimed in another store, or
  -- before this one was emptied.
  if not last then redis.call('HSET', fences, ' first', fence) end
end
if string.sub(fence, -2) == '77' then
  -- One grant in a hundred removes expired leases from the index: of more than have come since the
  -- last time.
  local ended = math.floor(now / 1000) - 1
  local over = redis.call('ZRANGEBYSCORE', index, '-inf', ended, 'LIMIT', 0, 300)
  if #over > 0 then
    redis.call('ZREM', index, unpack(over))
    redis.call('HDEL', fences, unpack(over))
  end
  -- It also sees to it that the fences are a hash table, as one long value makes them. Redis keeps up
  -- to 512 short ones in a list, through which it goes twice for each lease. No lock's name has a
  -- space.
  redis.call('HSET', fences, '  ', string.rep('-', 65))
end
