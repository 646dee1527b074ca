-- Grants all of N locks, or returns what holds one of them and grants none.
-- KEYS  1 index  2 fences  3.. for each lock its key and its queue
-- ARGV  1 ttl in ms  2 N  3.. the values of the locks, then their names
-- Returns {1, the locks' fences} or {0, number of the lock that is held, its value, its ttl left in
-- ms or -1}.
-- Idempotent for the same values: a client that asks again after a lost reply is granted them again.
local index, fences = KEYS[1], KEYS[2]
local ttl, count = ARGV[1], tonumber(ARGV[2])

--- include value_of_lock

for i = 1, count do
  local key, queue, value, name = KEYS[1 + 2 * i], KEYS[2 + 2 * i], ARGV[2 + i], ARGV[2 + count + i]
  local held = value_of_lock(key)
  if not held and redis.call('EXISTS', queue) == 1 then
    --- include hand_over
    -- The last lease has expired, and no waiter was notified. The first in the queue gets the lock.
    if hand_over(key, index, fences, queue, name, '') then held = value_of_lock(key) end
  end
  if held and held ~= value then return {0, i, held, redis.call('PTTL', key)} end
end

--- include next_fence
local granted = {}
for i = 1, count do
  local name = ARGV[2 + count + i]
  redis.call('SET', KEYS[1 + 2 * i], ARGV[2 + i], 'PX', ttl)
  local fence, now = next_fence(fences, name)
  --- include add_to_index
  granted[i] = fence
end
return {1, granted}
