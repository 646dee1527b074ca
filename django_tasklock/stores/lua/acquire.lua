-- Grants the first of some locks that is free, or says what holds them. A waiter joins the wait
-- queue in the same step. While the lock whose permits they are, their gate, is held, no permit is
-- granted but one that the token has already.
-- KEYS  1 index  2 fences  3 queue  4.. the locks  then, of permits, their gate  then the note, or
--       absent
-- ARGV  1 token  2 value  3 ttl in ms  4 how many permits there are; 0: it is one plain lock
--       5.. the locks' names; then, or absent:
--       the note's token, or ''; its value; its ttl in ms
--       the waiter's member of the queue; its number there, or ''
-- Returns {1, i, fence, 1 if the note is there} for the i-th lock. If all are held: {0, {value, ttl
-- left in ms or -1 for each}}, and for a waiter its number, how many are before it, and the greatest
-- fence until now. If the gate is held: the same of the gate alone, with -1 in the place of 0.
-- Idempotent for one token: a client that asks again is granted the same lock again.
local index, fences, queue = KEYS[1], KEYS[2], KEYS[3]
local token, value, ttl, permits = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local count = permits == 0 and 1 or permits
local gate = permits > 0 and KEYS[4 + count]
local note, me, number = KEYS[gate and 5 + count or 4 + count], ARGV[8 + count], ARGV[9 + count]

local held, free, mine, granted, shut = {}, nil, nil, nil, nil
local waited = redis.call('EXISTS', queue) == 1
if permits == 0 and not (waited or me) and redis.call('SET', KEYS[4], value, 'PX', ttl, 'NX') then
  mine = 1 -- As mostly. A waiter mostly finds it held, for which the other way is shorter.
else
  for i = 1, count do
    held[i] = redis.call('GET', KEYS[3 + i])
    if not held[i] then
      free = free or i
    elseif string.find(held[i], token, 1, true) then
      mine = i
    end
  end
  shut = gate and redis.call('GET', gate)
  if shut then free = nil end
  if mine then
    --- include now
    redis.call('PEXPIRE', KEYS[3 + mine], ttl)
    redis.call('ZADD', index, string.format('%d', now + ttl), ARGV[4 + mine])
    granted = redis.call('HGET', fences, ARGV[4 + mine])
  end
end

if free and not mine and waited then
  --- include hand_over
  -- The last lease has expired, and no waiter was told: the first in the queue gets the lock.
  if me then
    --- include join_queue
  end
  local own = permits == 0 and queue
  free = nil
  for i = 1, count do
    if not held[i] then
      local fence, first = hand_over(KEYS[3 + i], ARGV[4 + i], own, own or queue, gate)
      if not fence then
        free = free or i
      elseif string.sub(first, 1, 22) == token then
        mine, granted = i, fence
      else
        held[i] = redis.call('GET', KEYS[3 + i])
      end
    end
  end
end
if free and not mine then
  redis.call('SET', KEYS[3 + free], value, 'PX', ttl)
  mine = free
end

if mine then
  if not granted then
    local name, least = ARGV[4 + mine], nil
    --- include lease
    granted = fence
  end
  if me then redis.call('ZREM', queue, me) end
  local noted = 0
  if note then
    local there = redis.call('GET', note)
    if not there or string.find(there, ARGV[5 + count], 1, true) then
      redis.call('SET', note, ARGV[6 + count], 'PX', ARGV[7 + count])
      noted = 1
    end
  end
  return {1, mine, granted, noted}
end

local holders, refused = {}, shut and -1 or 0
for i = 1, shut and 1 or count do
  local value, key = shut or held[i], shut and gate or KEYS[3 + i]
  -- Of a longer value, which is none of ours, look.lua sends as much.
  holders[2 * i - 1], holders[2 * i] = string.sub(value, 1, 16385), redis.call('PTTL', key)
end
if not me then return {refused, holders} end
--- include join_queue
local last = redis.call('HMGET', fences, '', ARGV[5])
local fence = permits == 0 and last[2] or last[1] or '0'
return {refused, holders, number, redis.call('ZRANK', queue, me), fence}
