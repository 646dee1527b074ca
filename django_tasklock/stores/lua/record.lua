-- Writes events of the history, and forgets the oldest ones.
-- KEYS  1 the history
-- ARGV  1 how many are kept  2 for how long without an event, s  3.. for each event: the lock's
--       name, its text
-- Returns 1 if the history had to be removed and begun again, otherwise nothing.
local emptied
local latest = (redis.call('TIME')[1] + 24 * 3600) * 1000
for i = 3, #ARGV, 2 do
  local id = redis.pcall('XADD', KEYS[1], '*', 'name', ARGV[i], 'event', ARGV[i + 1])
  local late
  if type(id) == 'table' then
    late = string.find(id.err, 'last possible ID', 1, true)
  else
    late = tonumber(string.match(id, '^%d+')) > latest
  end
  if late then
    -- Ids only grow, and are the time. Somebody has added a much later one, or the clock was set
    -- back by days: nothing could be written, or it would be shown as of a wrong time.
    redis.call('DEL', KEYS[1])
    emptied = 1
  end
  if late or type(id) == 'table' then
    -- Any other error comes again here, and ends the script.
    redis.call('XADD', KEYS[1], '*', 'name', ARGV[i], 'event', ARGV[i + 1])
  end
end
-- Once for all: the server removes whole nodes of its list only, so some more may stay.
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return emptied
