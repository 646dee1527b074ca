-- Reads what holds some locks.
-- KEYS  1 fences  2.. for each lock: the lock, its queue
-- ARGV  their names
-- Returns for each lock its value or false, its ttl left in ms or -1, its fence or false, the
-- length of its queue, and the queue's first member or false.
--- include value_of_lock
--- include length_of
--- include head_of
local keys, queues = {}, {}
for i = 1, #ARGV do keys[i], queues[i] = KEYS[2 * i], KEYS[2 * i + 1] end
-- One command for all of them costs a quarter of one for each.
local values = redis.call('MGET', unpack(keys))
local fences = redis.call('HMGET', KEYS[1], unpack(ARGV))
local waiting = redis.call('EXISTS', unpack(queues)) > 0
local found = {}
for i, key in ipairs(keys) do
  local value, at = values[i], 5 * i - 4
  -- MGET returns nothing for a key of another type.
  if not value or #value > MAX_VALUE_BYTES then value = value_of_lock(key) end
  found[at] = value
  found[at + 1] = value and redis.call('PTTL', key)
  found[at + 2] = value and fences[i]
  found[at + 3] = waiting and length_of(queues[i]) or 0
  found[at + 4] = found[at + 3] > 0 and head_of(queues[i])
end
return found
