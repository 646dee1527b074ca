-- Reads who is the first in some wait queues.
-- KEYS  the queues
-- Returns for each its first member, or false.
local found = {}
for i, queue in ipairs(KEYS) do found[i] = redis.call('ZRANGE', queue, 0, 0)[1] or false end
return found
