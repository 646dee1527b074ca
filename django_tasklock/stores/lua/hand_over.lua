-- Included where a lock is free, or has changed, with `index` and `fences`.
--
-- A member of a wait queue is
-- token (22) .. channel id (22) .. N .. ':' .. ttl in ms .. ':' .. value
-- N is how many permits the waiter may choose from; 0: it waits for a plain lock.
-- A message is token .. news, and the news is one of
-- '+' .. fence .. ':' .. K            the lock is handed over: permit K, or 0
-- '=' .. fence .. ':' .. ttl .. ':' .. value    another one has it now, and the waiter is the next
-- '?'                                 the waiter is the next, and asks again

local function lease(name, ttl, least)
  --- include lease
  return fence
end

local function channel_of(member)
  return index .. ':' .. string.sub(member, 23, 44)
end

local function tell(member, news)
  redis.call('PUBLISH', channel_of(member), string.sub(member, 1, 22) .. news)
end

-- The first waiters of a queue, `most` at most, to whom somebody listens. Removes the others that it
-- meets: they are dead, or no waiters. `slot`: only those that may have this permit; 0: that wait for
-- a plain lock. (NUMSUB, because PUBLISH counts those as well who listen to all channels, such as
-- monitors.)
local function listening(queue, slot, most)
  local found, from, members = {}, 0, nil
  repeat
    members = redis.call('ZRANGE', queue, from, from + most - 1)
    local channels = {}
    for i, member in ipairs(members) do channels[i] = channel_of(member) end
    local heard = #members > 0 and redis.call('PUBSUB', 'NUMSUB', unpack(channels))
    for i, member in ipairs(members) do
      local permits = tonumber(string.match(member, '^(%d+):%d+:', 45))
      if permits and (permits < slot or slot == 0 and permits > 0) then
        from = from + 1
      elseif permits and heard[2 * i] > 0 then
        from = from + 1
        found[#found + 1] = member
        if #found == most then return found end
      else
        redis.call('ZREM', queue, member)
      end
    end
  until #members < most
  return found
end

-- The queues of a lock, and which permit it is there. `own`: of those that wait for just this lock,
-- or false; `permits`: of those that wait for one of several, or the same.
local function queues_of(name, own, permits)
  local found = own and {{own, 0}} or {}
  if permits ~= own then
    found[#found + 1] = {permits, tonumber(string.match(name, '^[^\n]*#(%d+)'))}
  end
  return found
end

-- Has the first who waits for a permit of a lock, their gate, ask again. It learns who holds the gate
-- now; if nobody does, all permits are handed over by that.
local function tell_permits(queue)
  local first = listening(queue, 1, 1)[1]
  if first then tell(first, '?') end
end

-- Gives a lock that nothing holds to the first waiter that may have it, and tells the next one. `gate`:
-- that of the permit which the lock may be; while it is held, nobody is given a permit.
-- Returns the fence and the waiter's member; false if nobody may have it.
local function hand_over(key, name, own, permits, gate)
  for _, place in ipairs(queues_of(name, own, permits)) do
    local queue, slot = place[1], place[2]
    local shut = slot > 0 and redis.call('EXISTS', gate) == 1
    if shut then tell_permits(queue) end -- It learns when the gate may be free, and asks then.
    local first, second = unpack(shut and {} or listening(queue, slot, 2))
    if first then
      local ttl, value = string.match(first, '^%d+:(%d+):(.*)', 45)
      redis.call('ZREM', queue, first)
      redis.call('SET', key, value, 'PX', ttl)
      local fence = lease(name, ttl)
      if second then
        tell(second, slot == 0 and '=' .. fence .. ':' .. ttl .. ':' .. value or '?')
      elseif slot == 0 then
        tell_permits(queue)
      end
      -- Last, because the server writes to its clients in the reverse order.
      tell(first, '+' .. fence .. ':' .. slot)
      return fence, first
    end
  end
  if own then tell_permits(own) end
  return false
end

-- Tells the next waiter who holds a lock now: it has become the next, or the record has changed. One
-- that waits for a permit asks again, because there are several holders.
local function tell_next(key, name, own, permits)
  for _, place in ipairs(queues_of(name, own, permits)) do
    local first = listening(place[1], place[2], 1)[1]
    local value, left = redis.call('GET', key), redis.call('PTTL', key)
    local fence = place[2] == 0 and left >= 0 and redis.call('HGET', fences, name)
    if first then tell(first, fence and '=' .. fence .. ':' .. left .. ':' .. value or '?') end
  end
end
