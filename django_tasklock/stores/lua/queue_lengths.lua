-- KEYS  1.. wait queues
-- Returns the length of each; nothing where none of them has waiters.
-- Mostly none has: one command for all of them shows that.
if redis.call('EXISTS', unpack(KEYS)) == 0 then return {} end
--- include length_of
local lengths = {}
for i, queue in ipairs(KEYS) do lengths[i] = length_of(queue) end
return lengths
