-- Included where the waiter `me` joins the wait queue, or keeps its position there: `number`, or ''.
if number == '' then
  -- A counter, and not a clock, which may step back.
  number = redis.call('HINCRBY', fences, ' ', '1')
elseif (tonumber(redis.call('HGET', fences, ' ')) or 0) < tonumber(number) then
  redis.call('HSET', fences, ' ', number) -- Redis has lost its data.
end
if redis.call('ZADD', queue, 'NX', number, me) == 0 then
  number = redis.call('ZSCORE', queue, me) -- It is there already.
end
-- So the queue of dead waiters expires. One that lives asks again every 30 s at the latest.
redis.call('PEXPIRE', queue, '60000')
