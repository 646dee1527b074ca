-- Reads what holds a lock.
-- KEYS  1 lock  2 fences  3 queue
-- ARGV  1 name
-- Returns {value, ttl left in ms or -1, fence or false, length of the queue}; nil if not held.
--- include value_of_lock
local value = value_of_lock(KEYS[1])
if not value then return nil end
return {value, redis.call('PTTL', KEYS[1]), redis.call('HGET', KEYS[2], ARGV[1]),
  redis.call('ZCARD', KEYS[3])}
