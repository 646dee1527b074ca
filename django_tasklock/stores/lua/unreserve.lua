-- Ends a reservation.
-- KEYS  1 the reservation  2 index of reservations
-- ARGV  1 the text it must be for  2 its member of the index; absent: it is not listed
-- Returns 1, or 0 if it is not reserved for the text: nothing was changed then.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] then redis.call('ZREM', KEYS[2], ARGV[2]) end
return redis.call('DEL', KEYS[1])
