-- Put before the verbs that grant a lease.

-- What no fence is before the year 2255: from here on whole numbers are no longer exact.
local BEYOND = 2 ^ 53 - 1

-- The next fence, and the server's clock. A fence is the clock in microseconds, and never
-- below the last one: it grows when the clock steps back, and when the data was lost.
local function next_fence(fences, name)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('HGET', fences, '')) or 0
  if last >= BEYOND then last = 0 end -- No fence of ours: somebody else wrote it.
  local fence = now
  if last >= now then fence = last + 1 end
  local text = string.format('%.0f', fence)
  redis.call('HSET', fences, '', text, name, text)
  return text, now
end

-- Puts a waiter into the queue, and returns its number there: that of its last question, `before`,
-- if that still stands there; else the one it had, `number`, for a waiter whose channel was cut
-- is passed over like a dead one, and keeps its place; else the next. Numbers are drawn from one
-- count, not from a clock, which may step back.
local DRAWN = ' '
local function join(fences, queue, me, before, number)
  if before ~= '' then
    number = redis.call('ZSCORE', queue, before) or number
    redis.call('ZREM', queue, before)
  end
  if number == '' then
    number = redis.pcall('HINCRBY', fences, DRAWN, 1)
    if type(number) == 'table' then
      -- Mostly no number stood there: somebody else wrote it.
      redis.call('HSET', fences, DRAWN, 0)
      number = redis.call('HINCRBY', fences, DRAWN, 1)
    end
  elseif (tonumber(redis.call('HGET', fences, DRAWN)) or 0) < tonumber(number) then
    redis.call('HSET', fences, DRAWN, number) -- The data was lost.
  end
  if redis.call('ZADD', queue, 'NX', number, me) == 0 then
    number = redis.call('ZSCORE', queue, me) -- The same question, whose reply was lost.
  end
  return number
end

-- Keeps the queue for as long as who asks may sleep: it asks again when the lease that holds the
-- lock now, with `left` ms left, may be over, and never more than 10 s later. A queue of dead
-- waiters goes away. Kept twice as long as it must, so that this has seldom to be said.
local function keep(queue, left)
  local most = (left < 0 and 60000 or left) + 10000
  if redis.call('PTTL', queue) < most then redis.call('PEXPIRE', queue, 2 * most) end
end

-- How many of those who come next know the holder: if it dies, the next one notices.
local TOLD = 1

-- A member of the queue is
-- token (22) .. channel id (22) .. number of the question .. ':' .. ttl in ms .. ':' .. value.
local function channel_of(index, member)
  return index .. ':' .. string.sub(member, 23, 44)
end

-- Tells a waiter something, as token .. number of the question .. ':' .. news: what comes late
-- must not be taken for the answer to a later question.
local function send(index, member, news)
  local question = string.sub(member, 45, string.find(member, ':', 45, true))
  redis.call('PUBLISH', channel_of(index, member), string.sub(member, 1, 22) .. question .. news)
end

-- Up to `most` members of the queue, from the place `from` on, who listen: as `me` is known to do.
-- Dead ones leave the queue.
local function living(index, queue, from, most, me)
  local found, dead = {}, nil
  repeat
    dead = {}
    local members = redis.call('ZRANGE', queue, from + #found, from + most - 1)
    if #members == 0 then break end
    local channels = {}
    for i, member in ipairs(members) do channels[i] = channel_of(index, member) end
    local counts = redis.call('PUBSUB', 'NUMSUB', unpack(channels))
    for i, member in ipairs(members) do
      local to = (counts[2 * i] > 0 or member == me) and found or dead
      to[#to + 1] = member
    end
    if #dead > 0 then redis.call('ZREM', queue, unpack(dead)) end
  until #dead == 0
  return found
end

-- Who holds the lock, for those who come next: they have another life to watch now, and another end.
local function holder(fence, now, left, value)
  return table.concat({'=', fence, ':', now, ':', left, ':', value})
end

-- Hands the lock to the first in the queue who still listens, which is told
-- fence .. ':' .. now in us; only `me`, who asks, is not told.
-- Returns the member's fence and the member, or false when nobody is left.
local function hand_over(key, index, fences, queue, name, me)
  local first = living(index, queue, 0, 1 + TOLD, me)
  local member = first[1]
  if not member then return false end
  local ttl, value = string.match(member, '^[^:]*:(%d+):(.*)$', 45)
  local fence, now = next_fence(fences, name)
  local moment = string.format('%.0f', now)
  redis.call('ZADD', index, math.floor(now / 1000) + ttl, name)
  redis.call('ZREM', queue, member)
  redis.call('SET', key, value, 'PX', ttl)
  if #first > 1 then
    local news = holder(fence, moment, ttl, value)
    for place = 2, #first do send(index, first[place], news) end
  end
  -- At the end, for the server writes to its clients in the reverse order.
  if member ~= me then send(index, member, fence .. ':' .. moment) end
  return fence, member
end
