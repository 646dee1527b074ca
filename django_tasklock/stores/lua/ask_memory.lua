-- KEYS  1 fences
-- Returns for how long the server has kept every lease, as memory.lua says.
--- include memory
return memory(KEYS[1])
