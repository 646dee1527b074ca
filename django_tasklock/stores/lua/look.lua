-- Included by the scripts that return what is there now.

-- A longer value is no record of ours, and only its beginning is sent.
local MAX_VALUE_BYTES = 16385

-- What is under some names: for each its value or false, its ttl left in ms or -1, its fence or
-- false, the length of its wait queue, and the first member there or false.
-- KEYS from `first` on are, `step` for each name, its key, the lock's own queue, and that of permits:
-- a lock whose record says so is one of several permits. Only a name that ends like a permit's has
-- two.
local function look(first, step, fences, names)
  local keys, queues = {}, {}
  for i = 1, #names do
    local at = first + step * (i - 1)
    keys[i], queues[2 * i - 1], queues[2 * i] = KEYS[at], KEYS[at + 1], KEYS[at + 2]
  end
  -- One command for all of them costs a quarter of one for each.
  local values, numbers = redis.call('MGET', unpack(keys)), redis.call('HMGET', fences, unpack(names))
  local waiting = redis.call('EXISTS', unpack(queues)) > 0
  local found = {}
  for i, key in ipairs(keys) do
    -- MGET returns nothing for a key of another type; GET says that it is one.
    local value, at = values[i] or redis.call('GET', key), 5 * i - 4
    if value then value = string.sub(value, 1, MAX_VALUE_BYTES) end
    found[at], found[at + 1] = value, value and redis.call('PTTL', key)
    found[at + 2], found[at + 3], found[at + 4] = value and numbers[i], 0, false
    if value and waiting then
      local queue = queues[string.find(value, '"slots\\?":') and 2 * i or 2 * i - 1]
      found[at + 3] = redis.call('ZCARD', queue)
      found[at + 4] = redis.call('ZRANGE', queue, 0, 0)[1] or false
    end
  end
  return found
end
