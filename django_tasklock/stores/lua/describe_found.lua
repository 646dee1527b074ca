-- Reads what a search has found. Removes the names whose key is gone from the index.
-- KEYS  1 index  2 fences  3.. the locks, and then their queues in the same order
-- ARGV  the names of the locks, in the same order
-- Returns {now in ms, {expiry in ms or false, ...}, {value or false, ...}, {fence or false, ...},
-- {length of the queue, ...} or {}, {number of the lock, first member of its queue, ...}}.
--- include value_of_lock
--- include describe_locks
local keys, queues = {unpack(KEYS, 3, 2 + #ARGV)}, {unpack(KEYS, 3 + #ARGV)}
local time, ends = redis.call('TIME'), {}
for i, name in ipairs(ARGV) do ends[i] = redis.call('ZSCORE', KEYS[1], name) end
local values, fences, lengths, heads = describe_locks(KEYS[1], KEYS[2], ARGV, keys, queues)
return {time[1] * 1000 + math.floor(time[2] / 1000), ends, values, fences, lengths, heads}
