-- KEYS  1.. wait queues
-- Returns the length of each.
--- include length_of
local lengths = {}
-- Mostly none of them has waiters: one command for all of them shows that.
local waiting = redis.call('EXISTS', unpack(KEYS)) > 0
for i, queue in ipairs(KEYS) do lengths[i] = waiting and length_of(queue) or 0 end
return lengths
