-- Removes what holds some locks, and hands each lock to the first in its queue.
-- KEYS  1 index  2 fences  3.. for each lock: the lock, its queue, the digest of what was cleared
--       last
-- ARGV  for each lock: its name, the only value to remove
-- Returns for each lock 1, or 0 if nothing was removed.
--- include value_of_lock
--- include hand_over
local index, fences = KEYS[1], KEYS[2]
-- All that can fail comes before the first change: a script that fails on a key of a wrong type is
-- run again after that key was removed, and would not find what it has cleared before.
redis.call('ZCARD', index)
redis.call('HLEN', fences)
local values, waiting, done = {}, {}, {}
for i = 1, #ARGV / 2 do
  values[i] = value_of_lock(KEYS[3 * i])
  waiting[i] = redis.call('ZCARD', KEYS[3 * i + 1]) > 0
end
for i = 1, #values do
  local name, held, key = ARGV[2 * i - 1], values[i], KEYS[3 * i]
  done[i] = held and held == ARGV[2 * i] and 1 or 0
  if done[i] == 1 then
    -- As in clear.lua.
    redis.call('ZREM', index, name)
    local left = redis.call('PTTL', key)
    if left > 0 then redis.call('SET', KEYS[3 * i + 2], redis.sha1hex(held), 'PX', left) end
    if not (waiting[i] and hand_over(key, index, fences, KEYS[3 * i + 1], name, '')) then
      redis.call('HDEL', fences, name)
      redis.call('DEL', key)
    end
  end
end
return done
