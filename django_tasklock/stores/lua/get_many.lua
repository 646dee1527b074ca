-- Reads what holds some locks.
-- KEYS  1 fences  2.. for each lock: the lock, its queue
-- ARGV  their names
-- Returns for each lock its value or false, its ttl left in ms or -1, its fence or false, the
-- length of its queue, and the queue's first member or false.
--- include value_of_lock
--- include head_of
local found = {}
for i, name in ipairs(ARGV) do
  local key, at = KEYS[2 * i], 5 * i - 4
  local value = value_of_lock(key)
  found[at] = value
  found[at + 1] = value and redis.call('PTTL', key)
  found[at + 2] = value and redis.call('HGET', KEYS[1], name)
  found[at + 3] = redis.call('ZCARD', KEYS[2 * i + 1])
  found[at + 4] = found[at + 3] > 0 and head_of(KEYS[2 * i + 1])
end
return found
