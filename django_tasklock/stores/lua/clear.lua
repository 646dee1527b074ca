-- Removes what holds the lock, and hands the lock to the first in the queue.
-- KEYS  1 lock  2 index  3 fences  4 queue  5 the digest of what was cleared last
-- ARGV  1 name  2 the only value to remove; absent: any value
-- Returns 1, or 0 if nothing was removed.
--- include value_of_lock
--- include hand_over
local held = value_of_lock(KEYS[1])
if not held or (ARGV[2] and held ~= ARGV[2]) then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1]) -- First, as in release.lua: a full server clears.
-- A holder whose release got no reply asks again, no later than at the end of its lease. It must be
-- able to distinguish this clear from its release.
local left = redis.call('PTTL', KEYS[1])
if left > 0 then redis.call('SET', KEYS[5], redis.sha1hex(held), 'PX', left) end
if not hand_over(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], '') then
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('DEL', KEYS[1])
end
return 1
