-- Reads those of some keys that never expire.
-- KEYS  the keys
-- Returns {number of the key, value, ...}.
--- include value_of_lock
local found = {}
for i, key in ipairs(KEYS) do
  if redis.call('PTTL', key) == -1 then
    found[#found + 1] = i
    found[#found + 1] = value_of_lock(key)
  end
end
return found
