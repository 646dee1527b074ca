-- Ends a reservation.
-- KEYS  1 the reservation
-- ARGV  1 the text it must be for
-- Returns 1, or 0 if it is not for the text.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
