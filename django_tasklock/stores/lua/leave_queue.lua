-- Removes a waiter from the queue. The waiter that is next then is sent who holds the lock.
-- KEYS  1 lock  2 index  3 fences  4 queue
-- ARGV  1 the waiter's member of the queue  2 value  3 name
--       4 the member of its question before, or ''
-- Returns nil; or the fence, if the lock was handed to this waiter just before.
--- include value_of_lock
--- include notify_waiters
local key, index, fences, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local held, fence = value_of_lock(key), redis.call('HGET', fences, ARGV[3])
local rank = redis.call('ZRANK', queue, ARGV[1]) or redis.call('ZRANK', queue, ARGV[4])
if not rank then
  if held == ARGV[2] then return fence end
  return nil
end
redis.call('ZREM', queue, ARGV[1], ARGV[4])
local left = redis.call('PTTL', key)
if held and fence and left >= 0 and rank < NOTIFIED_WAITERS then
  local time = redis.call('TIME')
  local now = string.format('%.0f', time[1] * 1000000 + time[2])
  for _, member in ipairs(listening(index, queue, NOTIFIED_WAITERS - 1, 1)) do
    send_news(index, member, holder_news(fence, now, left, held))
  end
end
return nil
