-- The records of a page; names whose key is gone leave the index.
-- KEYS  1 index  2 fences  3.. locks, and after them the line of each, in the same order
-- ARGV  the names of the locks, in the same order
-- Returns {{value or false, ...}, {fence or false, ...}, {length of the line, ...}}.
local keys = {unpack(KEYS, 3, 2 + #ARGV)}
local values = redis.call('MGET', unpack(keys))
local numbers = redis.call('HMGET', KEYS[2], unpack(ARGV))
local lengths = {}
for i = 1, #keys do
  lengths[i] = redis.call('ZCARD', KEYS[2 + #ARGV + i])
  if not values[i] then
    redis.call('ZREM', KEYS[1], ARGV[i])
    redis.call('HDEL', KEYS[2], ARGV[i])
  end
end
return {values, numbers, lengths}
