-- Counts the live locks.
-- KEYS  1 index
-- Returns the number.
--- include now
return redis.call('ZCOUNT', KEYS[1], now, '+inf')
