-- Removes whatever holds the lock, and hands it to the first in the queue.
-- KEYS  1 lock  2 index  3 fences  4 queue
-- ARGV  1 name  2 the value that must still hold it; absent: any
-- Returns 1, or 0 if there was nothing to remove, or the value no longer holds the lock.
local held = holding(KEYS[1])
if not held or (ARGV[2] and held ~= ARGV[2]) then return 0 end
if not hand_over(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], '') then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('DEL', KEYS[1])
end
return 1
