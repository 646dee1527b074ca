-- The records of a page; names whose key is gone leave the index.
-- KEYS  1 index  2 fences  3.. locks, and after them the queue of each, in the same order
-- ARGV  the names of the locks, in the same order
-- Returns {{value or false, ...}, {fence or false, ...}, {length of the queue, ...}}.
local keys, queues = {unpack(KEYS, 3, 2 + #ARGV)}, {unpack(KEYS, 3 + #ARGV)}
return {described(KEYS[1], KEYS[2], ARGV, keys, queues)}
