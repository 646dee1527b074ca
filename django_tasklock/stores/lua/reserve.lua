-- Reserves a key for a text.
-- KEYS  1 the reservation  2 index of reservations  3 a lock that must not be held, or absent
-- ARGV  1 text  2 ttl in ms  3 a text to write over, or ''
--       4 the reservation's member of the index; absent: it is not listed
-- Returns nil when it is reserved now; {1, text} when it is reserved for another text,
-- {2, value} when the lock is held.
local text = redis.call('GET', KEYS[1])
if text == ARGV[3] then text = false end
if text and text ~= ARGV[1] then return {1, text} end
if KEYS[3] and not text then
  --- include value_of_lock
  local value = value_of_lock(KEYS[3])
  if value then return {2, value} end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if ARGV[4] then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[4])
  -- Two expired ones are removed for each new one, so that the index does not grow without end.
  local over = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - 1, 'LIMIT', 0, 2)
  if #over > 0 then redis.call('ZREM', KEYS[2], unpack(over)) end
  -- The index must not expire before any reservation in it.
  local ttl = tonumber(ARGV[2])
  if redis.call('PTTL', KEYS[2]) < ttl then redis.call('PEXPIRE', KEYS[2], 2 * ttl) end
end
return nil
