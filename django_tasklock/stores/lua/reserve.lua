-- Reserves a key for a text.
-- KEYS  1 the reservation  2 a lock that must not be held, or absent
-- ARGV  1 text  2 ttl in ms  3 a text that counts as no reservation, or absent
-- Returns nil when it is reserved for the text; {1, text} when it is for another one,
-- {2, value} when the lock is held.
local text = redis.call('GET', KEYS[1])
if text == ARGV[3] then text = false end
if text and text ~= ARGV[1] then return {1, text} end
if KEYS[2] and not text then
  local value = holding(KEYS[2])
  if value then return {2, value} end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return nil
