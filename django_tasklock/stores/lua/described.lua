-- Put before the verbs that list.

-- The records of some locks, their fences, and the lengths of their queues, each false where there
-- is none. Names whose key is gone leave the index.
local function described(index, fences, names, keys, queues)
  if #names == 0 then return {}, {}, {} end
  local values = redis.call('MGET', unpack(keys))
  local numbers = redis.call('HMGET', fences, unpack(names))
  local lengths = {}
  -- Mostly nobody waits for any of them, which one question tells.
  local waiting = redis.call('EXISTS', unpack(queues)) > 0
  for i, name in ipairs(names) do
    lengths[i] = waiting and redis.call('ZCARD', queues[i]) or 0
    if not values[i] then
      redis.call('ZREM', index, name)
      redis.call('HDEL', fences, name)
    end
  end
  return values, numbers, lengths
end
