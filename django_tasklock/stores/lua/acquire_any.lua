-- Grants the first of N locks that is free, unless the gate is held.
-- KEYS  1 index  2 fences  3.. for each lock its key and its queue
--       then the gate, or absent, then a note to write when granted, or absent
-- ARGV  1 value  2 ttl in ms  3 N  4 '1': read the other locks' holders also when granted
--       5 the note's text  6 its ttl in ms, or '' where there is no note  7.. the locks' names
-- Returns {1, number of the lock, fence, holders}, or {2, ...} if there is another note, which is
-- kept; or {0, the gate's value or false, its ttl left in ms or -1, holders}. The holders are a flat
-- list of number, value and ttl left in ms or -1.
-- Idempotent for one value: a client that asks again after a lost reply is granted the same lock.
local index, fences = KEYS[1], KEYS[2]
local value, ttl, count, read_others = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local note = ARGV[6] ~= '' and KEYS[#KEYS]
local gate = #KEYS > 2 + 2 * count + (note and 1 or 0) and KEYS[3 + 2 * count]

--- include value_of_lock

local held, mine = {}, nil
for i = 1, count do
  held[i] = value_of_lock(KEYS[1 + 2 * i])
  if held[i] == value then mine = i end
end

local fence
local waits = not mine and gate and value_of_lock(gate)
if mine then
  redis.call('PEXPIRE', KEYS[1 + 2 * mine], ttl)
elseif not waits then
  for i = 1, count do
    local key, queue, name = KEYS[1 + 2 * i], KEYS[2 + 2 * i], ARGV[6 + i]
    if not held[i] then
      mine = i
      if redis.call('EXISTS', queue) == 1 then
        --- include hand_over
        -- The last lease has expired, and no waiter was notified.
        if hand_over(key, index, fences, queue, name, '') then
          held[i], mine = value_of_lock(key), nil
        end
      end
      if mine then
        redis.call('SET', key, value, 'PX', ttl)
        break
      end
    end
  end
end

local holders = {}
if not mine or read_others then
  for i = 1, count do
    if held[i] and i ~= mine then
      local at = #holders
      holders[at + 1], holders[at + 2] = i, held[i]
      holders[at + 3] = redis.call('PTTL', KEYS[1 + 2 * i])
    end
  end
end
if not mine then return {0, waits, waits and redis.call('PTTL', gate) or -1, holders} end

--- include next_fence
local name, now = ARGV[6 + mine], nil
fence, now = next_fence(fences, name)
--- include add_to_index
local kept = note and not redis.call('SET', note, ARGV[5], 'PX', ARGV[6], 'NX')
  and redis.call('GET', note) ~= ARGV[5]
return {kept and 2 or 1, mine, fence, holders}
