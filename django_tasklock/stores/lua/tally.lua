-- Counts.
-- KEYS  1 the count
-- ARGV  1 its ttl in ms, from now  2 what to add
-- Returns the count.
local count = redis.call('INCRBY', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return count
