-- Ends a lease, and hands the lock to the first in the queue.
-- KEYS  1 lock  2 index  3 fences  4 its own queue  5 the queue of the permits, or the same
--       6 the gate of the permits, or the lock  7 a note to write, or absent
-- ARGV  1 token  2 the lock's name  3 the note's value, or '' to remove it  4 its ttl in ms
-- Returns 1; or 0 if this lease no longer holds the lock: nothing was changed then.
local held = redis.call('GET', KEYS[1])
if not held or not string.find(held, ARGV[1], 1, true) then return 0 end
local index, fences, name = KEYS[2], KEYS[3], ARGV[2]
-- The first write of all, also where a hand-over puts the name there again: a server that is full
-- refuses a script's first write if that needs memory, and no later one.
redis.call('ZREM', index, name)
local handed = false
if redis.call('EXISTS', KEYS[4], KEYS[5]) > 0 then
  --- include hand_over
  handed = hand_over(KEYS[1], name, KEYS[4], KEYS[5], KEYS[6])
end
if not handed then
  redis.call('DEL', KEYS[1])
  redis.call('HDEL', fences, name)
end
if KEYS[7] then
  if ARGV[3] == '' then
    redis.call('DEL', KEYS[7])
  else
    redis.call('SET', KEYS[7], ARGV[3], 'PX', ARGV[4])
  end
end
return 1
