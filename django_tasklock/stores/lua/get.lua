-- Reads what holds a lock.
-- KEYS  1 lock  2 fences  3 queue
-- ARGV  1 name
-- Returns {value, ttl left in ms or -1, fence or false, length of the queue, its first member or
-- false}; nil if not held.
--- include value_of_lock
local value = value_of_lock(KEYS[1])
if not value then return nil end
local length, head = redis.call('ZCARD', KEYS[3]), false
if length > 0 then
  --- include head_of
  head = head_of(KEYS[3])
end
return {value, redis.call('PTTL', KEYS[1]), redis.call('HGET', KEYS[2], ARGV[1]), length, head}
