-- Included by the scripts that end a lease.

--- include next_fence
--- include notify_waiters

-- Hands the lock to the first waiter in the queue that is still subscribed, and sends it
-- fence .. ':' .. now in us. The waiter `me` runs this script, and is sent nothing. `waiting`: the
-- first 1 + NOTIFIED_WAITERS members of the queue, if the caller has read them.
-- Returns the fence and the waiter's member; false if no waiter is left.
local function hand_over(key, index, fences, queue, name, me, waiting)
  local first = listening(index, queue, 0, 1 + NOTIFIED_WAITERS, me, waiting)
  local member = first[1]
  if not member then return false end
  local colon = string.find(member, ':', 45, true)
  local second = string.find(member, ':', colon + 1, true)
  local ttl, value = string.sub(member, colon + 1, second - 1), string.sub(member, second + 1)
  local fence, now = next_fence(fences, name)
  redis.call('ZADD', index, math.floor(now / 1000) + ttl, name)
  redis.call('ZREM', queue, member)
  redis.call('SET', key, value, 'PX', ttl)
  if #first > 1 then
    local news = holder_news(fence, now, ttl, value)
    for i = 2, #first do send_news(index, first[i], news) end
  end
  -- Last, because the server writes to its clients in the reverse order.
  if member ~= me then send_news(index, member, fence .. ':' .. now) end
  return fence, member
end
