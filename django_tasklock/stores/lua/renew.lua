-- Makes each lease of a batch end its ttl after now.
-- KEYS  1 index  2.. locks
-- ARGV  for each lock: token, ttl in ms, name
-- Returns for each lock 1, or 0 if that lease no longer holds it: nothing was changed then.
--- include now
local done = {}
for i = 2, #KEYS do
  local at, held = (i - 2) * 3, redis.pcall('GET', KEYS[i])
  if type(held) == 'table' then
    -- A key that somebody has made one of another type does not end the other leases.
    if not string.find(held['err'], 'WRONGTYPE', 1, true) then return held end
    held = false
  end
  done[i - 1] = 0
  if held and string.find(held, ARGV[at + 1], 1, true) then
    -- Needs no memory, and so a full server takes the rest as well.
    redis.call('PEXPIRE', KEYS[i], ARGV[at + 2])
    redis.call('ZADD', KEYS[1], string.format('%d', now + ARGV[at + 2]), ARGV[at + 3])
    done[i - 1] = 1
  end
end
return done
