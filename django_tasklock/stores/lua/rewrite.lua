-- Replaces the record of a lease, and makes the lease end its ttl after now. The next waiter in the
-- queue is sent the new record.
-- KEYS  1 lock  2 index  3 fences  4 queue
-- ARGV  1 the value to replace  2 the new value  3 its ttl in ms  4 name
-- Returns the fence, or 1 where the lease has none; nil if neither value holds the lock: nothing was
-- changed then.
-- Idempotent: a client that asks again after a lost reply finds the new value.
--- include value_of_lock
local key, index, fences, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local value, ttl, name = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local held = value_of_lock(key)
if held ~= ARGV[1] and held ~= value then return nil end
redis.call('PEXPIRE', key, ttl) -- Needs no memory, and so a full server takes the rest as well.
redis.call('SET', key, value, 'PX', ttl)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZADD', index, math.floor(now / 1000) + ttl, name)
local fence = redis.call('HGET', fences, name)
if fence and redis.call('EXISTS', queue) == 1 then
  --- include notify_waiters
  local news = holder_news(fence, string.format('%.0f', now), ttl, value)
  for _, member in ipairs(listening(index, queue, 0, NOTIFIED_WAITERS)) do
    send_news(index, member, news)
  end
end
return fence or 1
