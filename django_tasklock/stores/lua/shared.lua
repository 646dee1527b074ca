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

-- Keeps the line for as long as who asks may sleep: it asks again when the lease that holds the
-- lock now, with `left` ms left, may be over, and never more than 10 s later. A line of dead
-- waiters goes away. Kept twice as long as it must, so that this has seldom to be said.
local function keep(line, left)
  local most = (left < 0 and 60000 or left) + 10000
  if redis.call('PTTL', line) < most then redis.call('PEXPIRE', line, 2 * most) end
end

-- How many of those who come next know the holder: if it dies, the next one notices.
local TOLD = 1

-- A member of the line is token (22) .. channel id (22) .. ttl in ms .. ':' .. value.
local function channel_of(index, member)
  return index .. ':' .. string.sub(member, 23, 44)
end

local function send(index, member, news)
  redis.call('PUBLISH', channel_of(index, member), string.sub(member, 1, 22) .. news)
end

-- Up to `most` members of the line, from the place `from` on, who listen: as `me` is known to do.
-- Dead ones leave the line.
local function living(index, line, from, most, me)
  local found, dead = {}, nil
  repeat
    dead = {}
    local members = redis.call('ZRANGE', line, from + #found, from + most - 1)
    if #members == 0 then break end
    local channels = {}
    for i, member in ipairs(members) do channels[i] = channel_of(index, member) end
    local counts = redis.call('PUBSUB', 'NUMSUB', unpack(channels))
    for i, member in ipairs(members) do
      local to = (counts[2 * i] > 0 or member == me) and found or dead
      to[#to + 1] = member
    end
    if #dead > 0 then redis.call('ZREM', line, unpack(dead)) end
  until #dead == 0
  return found
end

-- Who holds the lock, for those who come next: they have another life to watch now, and another end.
local function holder(fence, now, left, value)
  return table.concat({'=', fence, ':', now, ':', left, ':', value})
end

-- Hands the lock to the first in line who still listens, which is told
-- token .. fence .. ':' .. now in us; only `me`, who asks, is not told.
-- Returns the member's fence and the member, or false when nobody is left.
local function hand_over(key, index, fences, line, name, me)
  local first = living(index, line, 0, 1 + TOLD, me)
  local member = first[1]
  if not member then return false end
  redis.call('ZREM', line, member)
  local colon = string.find(member, ':', 45, true)
  local ttl, value = string.sub(member, 45, colon - 1), string.sub(member, colon + 1)
  local fence, now = next_fence(fences, name)
  local moment = string.format('%.0f', now)
  redis.call('SET', key, value, 'PX', ttl)
  redis.call('ZADD', index, math.floor(now / 1000) + ttl, name)
  if #first > 1 then
    local news = holder(fence, moment, ttl, value)
    for place = 2, #first do send(index, first[place], news) end
  end
  -- At the end, for the server writes to its clients in the reverse order.
  if member ~= me then send(index, member, fence .. ':' .. moment) end
  return fence, member
end
