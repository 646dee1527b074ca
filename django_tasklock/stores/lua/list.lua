-- Reads names from an index, the soonest to end first.
-- KEYS  1 the index
-- ARGV  1 the end in ms from which on to read; '' for now  2 how many names to read
-- Returns {name, end in ms, ...}.
local from = ARGV[1]
if from == '' then
  local time = redis.call('TIME')
  from = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))
end
return redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
