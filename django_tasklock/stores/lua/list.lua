-- Reads names from an index, the soonest to end first.
-- KEYS  1 the index
-- ARGV  1 the end in ms from which on to read; '' for now  2 how many names to read
-- Returns {name, end in ms, ...}.
local from = ARGV[1]
if from == '' then
  --- include now
  from = string.format('%d', now)
end
return redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
