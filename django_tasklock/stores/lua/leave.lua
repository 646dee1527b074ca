-- Removes a waiter from the wait queue.
-- KEYS  1 index  2 fences  3 queue  4.. the locks  then, of permits, their gate
-- ARGV  1 token  2 the waiter's member  3.. the locks' names
-- Returns nil; or {i, fence} if the i-th lock was handed to this waiter just before.
local index, fences, queue = KEYS[1], KEYS[2], KEYS[3]
local rank = redis.call('ZRANK', queue, ARGV[2])
if rank then
  redis.call('ZREM', queue, ARGV[2])
else
  for i = 4, #ARGV + 1 do
    local held = redis.call('GET', KEYS[i])
    if held and string.find(held, ARGV[1], 1, true) then
      return {i - 3, redis.call('HGET', fences, ARGV[i - 1])}
    end
  end
end
if rank == 0 then
  --- include hand_over
  local own = string.sub(ARGV[2], 45, 46) == '0:' and queue
  -- (Who waits for a permit at all may have the first one.)
  tell_next(KEYS[4], ARGV[3], own, own or queue)
end
