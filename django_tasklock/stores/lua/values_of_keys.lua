-- Reads some keys, keys that somebody else set included.
-- KEYS  the keys
-- Returns for each key its value or false, and its ttl left in ms or -1.
--- include value_of_lock
local found = {}
for i, key in ipairs(KEYS) do
  found[2 * i - 1] = value_of_lock(key)
  found[2 * i] = redis.call('PTTL', key)
end
return found
