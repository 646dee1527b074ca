-- Reads a page of the index of reservations, the soonest to end first, and removes expired ones.
-- KEYS  1 index of reservations
-- ARGV  1 offset  2 how many members to read  3 prefix of the members to return
-- Returns {how many were read, {member, ...}}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local over = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - 1, 'LIMIT', 0, 1000)
if #over > 0 then redis.call('ZREM', KEYS[1], unpack(over)) end
local first = redis.call('ZCOUNT', KEYS[1], '-inf', now - 1) + ARGV[1]
local found = redis.call('ZRANGE', KEYS[1], first, first + ARGV[2] - 1)
local members, prefix = {}, ARGV[3]
for _, member in ipairs(found) do
  if string.sub(member, 1, #prefix) == prefix then members[#members + 1] = member end
end
return {#found, members}
