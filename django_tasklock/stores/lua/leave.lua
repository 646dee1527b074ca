-- Leaves the queue. Whoever moves up to where the holder is to be known is told of it.
-- KEYS  1 lock  2 index  3 fences  4 queue
-- ARGV  1 member of the queue  2 value  3 name  4 the member of the question before, or ''
-- Returns nil; or the fence, if the lock was handed over in that very moment and is held.
local key, index, fences, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local held, fence = holding(key), redis.call('HGET', fences, ARGV[3])
local place = redis.call('ZRANK', queue, ARGV[1]) or redis.call('ZRANK', queue, ARGV[4])
if not place then
  if held == ARGV[2] then return fence end
  return nil
end
redis.call('ZREM', queue, ARGV[1], ARGV[4])
local left = redis.call('PTTL', key)
if held and fence and left >= 0 and place < TOLD then
  local time = redis.call('TIME')
  local now = string.format('%.0f', time[1] * 1000000 + time[2])
  for _, next in ipairs(living(index, queue, TOLD - 1, 1)) do
    send(index, next, holder(fence, now, left, held))
  end
end
return nil
