-- Put before the verbs that list.

-- How many wait; nobody where something else than a queue was put there.
local function length_of(queue)
  local length = redis.pcall('ZCARD', queue)
  if type(length) == 'number' then return length end
  return redis.call('TYPE', queue)['ok'] == 'zset' and redis.call('ZCARD', queue) or 0
end

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
    lengths[i] = waiting and length_of(queues[i]) or 0
    local value = values[i]
    -- MGET says of a key of another type that there is none.
    if not value or #value > LONGEST then values[i] = holding(keys[i]) end
    if not values[i] then
      redis.call('ZREM', index, name)
      redis.call('HDEL', fences, name)
    end
  end
  return values, numbers, lengths
end
