-- Writes what a lock needs, and leaves nothing: an error says what the server refuses.
-- KEYS  1 a key of no lock
local key = KEYS[1]
redis.call('SET', key, '', 'PX', 1000)
redis.call('DEL', key)
redis.call('HSET', key, '', '')
redis.call('DEL', key)
redis.call('ZADD', key, 0, '')
redis.call('DEL', key)
