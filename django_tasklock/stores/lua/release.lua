-- Ends a lease and hands the lock to the first in the queue.
-- KEYS  1 lock  2 index  3 fences  4 queue  5 a note to write, or absent
-- ARGV  1 value  2 name  3 the note's text, or '' to remove it  4 its ttl in ms
-- Returns 1, or 0 if the value no longer holds the lock: nothing was changed then. It is -1 where,
-- besides, no release can have ended it: one takes the lease's fence away, but never the last fence.
local held = holding(KEYS[1])
if held ~= ARGV[1] then
  local fences = not held and redis.call('HMGET', KEYS[3], '', ARGV[2])
  return fences and (fences[2] or not fences[1]) and -1 or 0
end
-- Mostly nobody waits, which is asked here at a third of the price of a look into the queue.
if redis.call('EXISTS', KEYS[4]) == 0
  or not hand_over(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[2], '') then
  redis.call('ZREM', KEYS[2], ARGV[2])
  redis.call('HDEL', KEYS[3], ARGV[2])
  redis.call('DEL', KEYS[1])
end
if KEYS[5] then
  if ARGV[3] == '' then
    redis.call('DEL', KEYS[5])
  else
    redis.call('SET', KEYS[5], ARGV[3], 'PX', ARGV[4])
  end
end
return 1
