-- Grants the lock, or returns its holder. A waiter joins the wait queue in the same step.
-- KEYS  1 lock  2 index  3 fences  4 queue  5 a note to write when granted, or absent
-- ARGV  1 value  2 ttl in ms  3 name; the rest may be absent:
--       4 the waiter's member of the queue, or '' not to join
--       5 the member of the waiter's question before this one, or ''
--       6 the waiter's number in the queue, or ''
--       7 the note's text  8 its ttl in ms
--       9 what the fence should be if that is greater than the last one
-- Returns the fence when granted, with ARGV[9] {1, fence, memory}; {2, fence} when granted while
-- there is another note, which is kept; {0, value, ttl left in ms or -1} when held. A waiter also
-- gets the time in us, its number in the queue, and how many are before it.
-- Idempotent for one value: a client that asks again after a lost reply is granted the lock again.
local key, index, fences, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local value, ttl, name, me, before = ARGV[1], ARGV[2], ARGV[3], ARGV[4] or '', ARGV[5]
local held, fence = false, nil
-- A waiter mostly finds the lock held: for it, GET before SET is cheaper on average.
if me ~= '' then
  --- include value_of_lock
  held = value_of_lock(key)
end
local mine = not held and redis.call('SET', key, value, 'PX', ttl, 'NX')
if mine then
  if redis.call('EXISTS', queue) == 1 then
    --- include join_queue
    --- include hand_over
    -- The last lease has expired, and no waiter was notified. The first in the queue gets the lock.
    if me ~= '' then join_queue(fences, queue, me, before, ARGV[6]) end
    local handed, first = hand_over(key, index, fences, queue, name, me)
    if handed then
      mine = false
      if first == me then fence = handed end
    end
  end
else
  if not held then
    --- include value_of_lock
    held = value_of_lock(key)
  end
  if held == value then
    redis.call('PEXPIRE', key, ttl)
    if me ~= '' then redis.call('ZREM', queue, me, before) end
    mine = true
  end
end

if mine then
  local floor = ARGV[9]
  --- include draw_fence
  fence = drawn
  --- include add_to_index
end
if fence then
  if KEYS[5] and not redis.call('SET', KEYS[5], ARGV[7], 'PX', ARGV[8], 'NX')
    and redis.call('GET', KEYS[5]) ~= ARGV[7] then return {2, fence} end
  if ARGV[9] then
    --- include memory
    return {1, fence, memory(fences)}
  end
  return fence
end

local left = redis.call('PTTL', key)
if not held then
  --- include value_of_lock
  held = value_of_lock(key)
end
if me == '' then return {0, held, left} end
--- include join_queue
local number = join_queue(fences, queue, me, before, ARGV[6])
keep_queue(queue, left)
local time, rank = redis.call('TIME'), redis.call('ZRANK', queue, me)
return {0, held, left, time[1] .. string.sub('00000' .. time[2], -6), number, rank}
