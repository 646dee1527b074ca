-- Reads who is the first in some wait queues.
-- KEYS  the queues
-- Returns for each its first member, or false.
--- include head_of
local found = {}
-- Mostly none of them has waiters: one command for all of them shows that.
local waiting = redis.call('EXISTS', unpack(KEYS)) > 0
for i, queue in ipairs(KEYS) do found[i] = waiting and head_of(queue) end
return found
