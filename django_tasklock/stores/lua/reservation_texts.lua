-- Reads what some keys are reserved for. Removes keys that are no longer reserved from the index.
-- KEYS  1 index of reservations  2.. the reservations
-- ARGV  1 how many bytes of a text to read  2.. their members of the index, in the same order
-- Returns for each its text or false, and its ttl left in ms or -1.
local found = {}
for i = 2, #KEYS do
  -- Somebody may have put a key of another type there.
  local text = redis.pcall('GETRANGE', KEYS[i], 0, ARGV[1] - 1)
  if type(text) ~= 'string' or text == '' then
    text = false
    redis.call('ZREM', KEYS[1], ARGV[i])
  end
  found[#found + 1] = text
  found[#found + 1] = redis.call('PTTL', KEYS[i])
end
return found
