-- Put before the verbs that grant a lease.

-- The next fence, and the server's clock. A fence is the clock in microseconds, and never
-- below the last one: it grows when the clock steps back, and when the data was lost.
local function next_fence(fences, name)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('HGET', fences, '') or 0)
  local fence = now
  if last >= now then fence = last + 1 end
  local text = string.format('%.0f', fence)
  redis.call('HSET', fences, '', text, name, text)
  return text, now
end

-- Keeps the line for as long as its waiters may sleep: each asks again when a lease that it knows
-- of, with `left` ms left, may be over. A line of dead waiters goes away.
local function keep(line, left)
  local most = (left < 0 and 60000 or left) + 10000
  if redis.call('PTTL', line) < most then redis.call('PEXPIRE', line, most) end
end

-- How many of those who come next know the holder. If it dies, one of them notices, unless they
-- all died with it.
local TOLD = 2

-- A member of the line is token (22) .. channel id (22) .. ttl in ms .. ':' .. value.
local function channel_of(index, member)
  return index .. ':' .. string.sub(member, 23, 44)
end

local function listens(channel)
  return redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0
end

-- Tells living members of the line, from the place `at` to the last one that is to know, who holds
-- the lock: they have another life to watch now, and another end. Dead ones leave the line.
-- Each is told token .. '=' .. fence .. ':' .. now in us .. ':' .. ttl left in ms .. ':' .. value.
local function tell(index, line, at, fence, now, left, value)
  while at < TOLD do
    local member = redis.call('ZRANGE', line, at, at)[1]
    if not member then return end
    local channel = channel_of(index, member)
    if listens(channel) then
      redis.call('PUBLISH', channel, table.concat({
        string.sub(member, 1, 22), '=', fence, ':', now, ':', left, ':', value}))
      at = at + 1
    else
      redis.call('ZREM', line, member)
    end
  end
end

-- Hands the lock to the first in line who still listens, which is told
-- token .. fence .. ':' .. now in us; only the member `me` is known to listen, and is not told.
-- Returns the member's fence and the member, or false when nobody is left.
local function hand_over(key, index, fences, line, name, me)
  while true do
    local member = redis.call('ZPOPMIN', line)[1]
    if not member then return false end
    local colon = string.find(member, ':', 45, true)
    local channel = channel_of(index, member)
    if member == me or listens(channel) then
      local ttl = tonumber(string.sub(member, 45, colon - 1))
      local value = string.sub(member, colon + 1)
      local fence, now = next_fence(fences, name)
      redis.call('SET', key, value, 'PX', ttl)
      redis.call('ZADD', index, math.floor(now / 1000) + ttl, name)
      local moment = string.format('%.0f', now)
      if member ~= me then
        redis.call('PUBLISH', channel, string.sub(member, 1, 22) .. fence .. ':' .. moment)
      end
      keep(line, ttl)
      tell(index, line, 0, fence, moment, string.sub(member, 45, colon - 1), value)
      return fence, member
    end
  end
end
