-- What some keys hold, whoever set them.
-- KEYS  the keys
-- Returns for each key its value or false, and its ttl left in ms or -1.
local found = {}
for i, key in ipairs(KEYS) do
  found[2 * i - 1] = holding(key)
  found[2 * i] = redis.call('PTTL', key)
end
return found
