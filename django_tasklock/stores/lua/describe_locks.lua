-- Included by the scripts that list.

--- include length_of
--- include head_of

-- The records of some locks, their fences (both false where there is none), the lengths of their
-- queues, or none if all are empty, and of each queue that is not empty the lock's number and the
-- first member, as a flat list. Removes the names whose key is gone from the index.
local function describe_locks(index, fences, names, keys, queues)
  if #names == 0 then return {}, {}, {}, {} end
  local values = redis.call('MGET', unpack(keys))
  local numbers = redis.call('HMGET', fences, unpack(names))
  local lengths, heads = {}, {}
  -- Mostly none of them has waiters: one command for all of them shows that.
  local waiting = redis.call('EXISTS', unpack(queues)) > 0
  for i, name in ipairs(names) do
    if waiting then
      lengths[i] = length_of(queues[i])
      local head = lengths[i] > 0 and head_of(queues[i])
      if head then heads[#heads + 1], heads[#heads + 2] = i, head end
    end
    local value = values[i]
    -- MGET returns nothing for a key of another type.
    if not value or #value > MAX_VALUE_BYTES then values[i] = value_of_lock(keys[i]) end
    if not values[i] then
      redis.call('ZREM', index, name)
      redis.call('HDEL', fences, name)
    end
  end
  return values, numbers, lengths, heads
end
