-- Says which locks are held, keys that somebody else set included.
-- KEYS  the locks
-- Returns for each key 1 or 0.
local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('EXISTS', key) end
return found
