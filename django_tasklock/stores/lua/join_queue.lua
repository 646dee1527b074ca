-- Included where a waiter joins the queue.

-- The field of the fences for the number of the last waiter. Not a clock, which may step back.
local LAST_NUMBER = ' '

-- Puts a waiter into the queue, and returns its number there, which decides the order:
-- * the number of its question before, `before`, if that is still in the queue;
-- * else `number`, which it had before: while its connection was cut, it was removed as dead;
-- * else the next number.
local function join_queue(fences, queue, me, before, number)
  if before ~= '' then
    number = redis.call('ZSCORE', queue, before) or number
    redis.call('ZREM', queue, before)
  end
  if number == '' then
    number = redis.pcall('HINCRBY', fences, LAST_NUMBER, '1')
    if type(number) == 'table' then
      -- Somebody else wrote something there that is no number.
      redis.call('HSET', fences, LAST_NUMBER, 0)
      number = redis.call('HINCRBY', fences, LAST_NUMBER, 1)
    end
  elseif (tonumber(redis.call('HGET', fences, LAST_NUMBER)) or 0) < tonumber(number) then
    redis.call('HSET', fences, LAST_NUMBER, number) -- Redis has lost its data.
  end
  if redis.call('ZADD', queue, 'NX', number, me) == 0 then
    number = redis.call('ZSCORE', queue, me) -- This question was asked before; its reply was lost.
  end
  return number
end

-- Sets the queue's ttl, so that a queue of dead waiters expires. A living waiter asks again at most
-- 10 s after the end of the lease that holds the lock now and has `left` ms left. The ttl is twice
-- as long as needed, so that it must seldom be set.
local function keep_queue(queue, left)
  local most = (left < 0 and 60000 or left) + 10000
  if redis.call('PTTL', queue) < most then redis.call('PEXPIRE', queue, 2 * most) end
end
