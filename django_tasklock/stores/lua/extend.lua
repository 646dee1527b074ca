-- Makes each lease of a batch end its ttl after now.
-- KEYS  1 index  2.. locks
-- ARGV  for each lock: value, ttl in ms, name
-- Returns for each lock 1, or 0 if that value no longer holds it: nothing was changed then.
--- include value_of_lock
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local done = {}
for i = 2, #KEYS do
  local at = (i - 2) * 3
  if value_of_lock(KEYS[i]) == ARGV[at + 1] then
    local ttl = tonumber(ARGV[at + 2])
    redis.call('PEXPIRE', KEYS[i], ttl)
    redis.call('ZADD', KEYS[1], now + ttl, ARGV[at + 3])
    done[i - 1] = 1
  else
    done[i - 1] = 0
  end
end
return done
