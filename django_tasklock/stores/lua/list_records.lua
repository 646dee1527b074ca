-- Reads the records of a page. Removes the names whose key is gone from the index.
-- KEYS  1 index  2 fences  3.. the locks, and then their queues in the same order
-- ARGV  the names of the locks, in the same order
-- Returns {{value or false, ...}, {fence or false, ...}, {length of the queue, ...} or {},
-- {number of the lock, first member of its queue, ...}}.
--- include value_of_lock
--- include describe_locks
local keys, queues = {unpack(KEYS, 3, 2 + #ARGV)}, {unpack(KEYS, 3 + #ARGV)}
return {describe_locks(KEYS[1], KEYS[2], ARGV, keys, queues)}
