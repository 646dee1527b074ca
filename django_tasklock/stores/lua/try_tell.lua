-- Tells a waiter nothing: an error says what the server refuses.
-- ARGV  1 a channel
redis.call('PUBSUB', 'NUMSUB', ARGV[1])
redis.call('PUBLISH', ARGV[1], '')
