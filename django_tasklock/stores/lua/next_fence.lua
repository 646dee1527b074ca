-- Included by the scripts that grant a lease.

-- Lua's numbers are not exact beyond it. No fence is as large before the year 2255.
local MAX_FENCE = 2 ^ 53 - 1

-- The next fence, and the server's clock. A fence is the clock in microseconds, but always greater
-- than the last one. So it grows even if the clock steps back, or Redis has lost its data.
-- A `floor` that is given stands for the clock: the fence is that number, if it is greater.
local function next_fence(fences, name, floor)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('HGET', fences, '')) or 0
  if last >= MAX_FENCE then last = 0 end -- Somebody else wrote it.
  local fence = floor or now
  if last >= fence then fence = last + 1 end
  local text = string.format('%.0f', fence)
  redis.call('HSET', fences, '', text, name, text)
  return text, now
end
