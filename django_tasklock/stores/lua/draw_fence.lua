-- Included where a lease is granted, with `fences`, `name` and `floor`. Makes `drawn`, the next fence,
-- and `now`, the server's clock in us, as texts: to write a number as one takes Redis thousands of
-- instructions. A fence is the clock, but always greater than the last one. So it grows even if the
-- clock steps back, or Redis has lost its data.
-- A `floor` that is given stands for the clock: the fence is that number, if it is greater.
local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local drawn, last = floor or now, redis.call('HGET', fences, '')
-- Numbers of 16 digits, as all clocks until the year 2286, compare as texts do.
if last and not (#last == 16 and #drawn == 16 and last < drawn) then
  -- Lua's numbers are not exact beyond it. No fence is as large before the year 2255.
  local MAX_FENCE = 2 ^ 53 - 1
  last = tonumber(last) or 0
  if last >= MAX_FENCE then last = 0 end -- Somebody else wrote it.
  if last >= tonumber(drawn) then drawn = string.format('%.0f', last + 1) end
end
redis.call('HSET', fences, '', drawn, name, drawn)
