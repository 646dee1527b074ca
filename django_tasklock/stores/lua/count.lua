-- Counts the live locks.
-- KEYS  1 index
-- Returns the number.
local time = redis.call('TIME')
return redis.call('ZCOUNT', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000), '+inf')
