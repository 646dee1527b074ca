-- Grants the lock, or says who holds it; may stand in the wait queue.
-- KEYS  1 lock  2 index  3 fences  4 queue  5 a note to write when granted, or absent
-- ARGV  1 value  2 ttl in ms  3 name  4 member of the queue, or '' not to stand in it
--       5 the member of the waiter's last question, or ''  6 the waiter's number, or ''
--       7 the note's text  8 its ttl in ms
-- Returns {1, fence} when granted; {0, value, ttl left in ms or -1, now in us, number in the queue
-- or ''} when held.
-- Idempotent for one value: asked again after a lost reply, it grants again.
local key, index, fences, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local value, ttl, name, me, before = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]

local function granted(fence)
  if KEYS[5] then redis.call('SET', KEYS[5], ARGV[7], 'PX', ARGV[8]) end
  return {1, fence}
end

-- Who is ready to wait mostly finds it held: a look first then costs the least.
local held = me ~= '' and holding(key)
local mine = not held and redis.call('SET', key, value, 'PX', ttl, 'NX')
if mine then
  if redis.call('EXISTS', queue) == 1 then
    -- The last lease ran out, and nobody was told. The first in the queue comes first.
    if me ~= '' then join(fences, queue, me, before, ARGV[6]) end
    local fence, first = hand_over(key, index, fences, queue, name, me)
    if fence then
      if first == me then return granted(fence) end
      mine = false
    end
  end
else
  held = held or holding(key)
  if held == value then
    redis.call('PEXPIRE', key, ttl)
    if me ~= '' then redis.call('ZREM', queue, me, before) end
    mine = true
  end
end

if mine then
  local fence, now = next_fence(fences, name)
  now = math.floor(now / 1000)
  redis.call('ZADD', index, now + ttl, name)
  if fence % 16 == 0 then
    -- One lease in sixteen tidies: what ran out leaves the index.
    local over = redis.call('ZRANGEBYSCORE', index, '-inf', now - 1, 'LIMIT', 0, 100)
    if #over > 0 then
      redis.call('ZREM', index, unpack(over))
      redis.call('HDEL', fences, unpack(over))
    end
  end
  return granted(fence)
end

local left = redis.call('PTTL', key)
local time = redis.call('TIME')
local number = ''
if me ~= '' then
  number = join(fences, queue, me, before, ARGV[6])
  keep(queue, left)
end
local now = string.format('%.0f', time[1] * 1000000 + time[2])
return {0, held or holding(key), left, now, number}
