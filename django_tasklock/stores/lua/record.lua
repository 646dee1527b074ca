-- Writes events of the history, and forgets the oldest ones.
-- KEYS  1 the history
-- ARGV  1 how many are kept  2.. for each event: the lock's name, its text
-- Returns nothing.
for i = 2, #ARGV, 2 do
  redis.call('XADD', KEYS[1], '*', 'name', ARGV[i], 'event', ARGV[i + 1])
end
-- Once for all: the server removes whole nodes of its list only, so some more may stay.
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[1])
