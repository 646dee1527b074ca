-- Ends a lease, and hands the lock to the first in the queue.
-- KEYS  1 lock  2 index  3 fences  4 queue  5 a note to write, or absent
-- ARGV  1 value  2 name  3 the note's text, or '' to remove it  4 its ttl in ms
-- Returns '1'; or '0' or '-1' if the value no longer holds the lock: nothing was changed then. It is
-- '-1' if no release can have ended the lease: a release removes the lock's own fence, but not the
-- last fence.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  --- include value_of_lock
  local fences = not value_of_lock(KEYS[1]) and redis.call('HMGET', KEYS[3], '', ARGV[2])
  return fences and (fences[2] or not fences[1]) and '-1' or '0'
end
-- The first write of all, also where a hand-over puts the name there again: a server that is full
-- refuses a script's first write if that needs memory, and no later one.
redis.call('ZREM', KEYS[2], ARGV[2])
local handed_over = false
-- Mostly nobody waits: a look costs a third of hand_over on an empty queue. It is the one that
-- hand_over would make, of as many members. (Texts: Redis writes a number as a text with thousands
-- of instructions.)
local waiting = redis.call('ZRANGE', KEYS[4], '0', '1')
if #waiting > 0 then
  --- include hand_over
  handed_over = hand_over(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[2], '', waiting)
end
if not handed_over then
  redis.call('HDEL', KEYS[3], ARGV[2])
  redis.call('DEL', KEYS[1])
end
if KEYS[5] then
  if ARGV[3] == '' then
    redis.call('DEL', KEYS[5])
  else
    redis.call('SET', KEYS[5], ARGV[3], 'PX', ARGV[4])
  end
end
return '1'
