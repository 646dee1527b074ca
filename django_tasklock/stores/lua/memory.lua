-- Included by scripts for members of a quorum.

-- For how long the server has kept every lease: the seconds since it was started, and the
-- microseconds since the fences were missing, as they are once the data was lost. No lock's name has
-- a space.
local function memory(fences)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local since = tonumber(redis.call('HGET', fences, ' since'))
  if not since then
    since = now
    redis.call('HSET', fences, ' since', string.format('%.0f', now))
  end
  local up = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)') or '0'
  return {up, string.format('%.0f', math.max(0, now - since))}
end
