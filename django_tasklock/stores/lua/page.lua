-- A stretch of the index, the soonest to expire first; what ran out leaves it.
-- KEYS  1 index  2 fences
-- ARGV  1 offset  2 how many to look at  3 prefix
--       4 what stands before a name in its lock's key; absent: without the records
-- Returns {now in ms, how many were looked at, {name, ...}, {expiry in ms, ...}}, and with the
-- records {value or false, ...}, {fence or false, ...}, {length of the queue, ...}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local over = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - 1, 'LIMIT', 0, 1000)
if #over > 0 then
  redis.call('ZREM', KEYS[1], unpack(over))
  redis.call('HDEL', KEYS[2], unpack(over))
end
-- By rank: an offset into a range of scores would be walked, one by one.
local first = redis.call('ZCOUNT', KEYS[1], '-inf', now - 1) + ARGV[1]
local found = redis.call('ZRANGE', KEYS[1], first, first + ARGV[2] - 1, 'WITHSCORES')
local names, ends, prefix = {}, {}, ARGV[3]
for i = 1, #found, 2 do
  if string.sub(found[i], 1, #prefix) == prefix then
    names[#names + 1] = found[i]
    ends[#ends + 1] = found[i + 1]
  end
end
if not ARGV[4] then return {now, #found / 2, names, ends} end
local keys, queues = {}, {}
for i, name in ipairs(names) do
  keys[i] = ARGV[4] .. name
  queues[i] = keys[i] .. ' queue'
end
return {now, #found / 2, names, ends, described(KEYS[1], KEYS[2], names, keys, queues)}
