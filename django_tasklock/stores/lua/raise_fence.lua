-- Makes the fence of a lease, and the last fence, at least as great as a number.
-- KEYS  1 lock  2 fences
-- ARGV  1 value  2 name  3 the number
-- Returns 1, or 0 if the value no longer holds the lock: nothing was changed then.
--- include value_of_lock
if value_of_lock(KEYS[1]) ~= ARGV[1] then return 0 end
local least = tonumber(ARGV[3])
for _, field in ipairs({'', ARGV[2]}) do
  local fence = tonumber(redis.call('HGET', KEYS[2], field)) or 0
  if fence < least then redis.call('HSET', KEYS[2], field, ARGV[3]) end
end
return 1
