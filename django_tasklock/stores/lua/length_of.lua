-- Included by the scripts that count waiters.

-- The length of a wait queue; 0 where the key has another type.
local function length_of(queue)
  local length = redis.pcall('ZCARD', queue)
  if type(length) == 'number' then return length end
  return redis.call('TYPE', queue)['ok'] == 'zset' and redis.call('ZCARD', queue) or 0
end
