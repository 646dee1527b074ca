-- Included by the scripts that read a lock's key.

-- No record of ours is longer; decoding.py has it too.
local MAX_VALUE_BYTES = 16384

-- The value of a lock's key, false where there is none. A key of another type, or with a long
-- value, was set by somebody else and is a lock too. For such a key this returns a short
-- description, which begins with a space: no record does.
local function value_of_lock(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    local kind = redis.call('TYPE', key)['ok']
    -- It was another error, such as a missing right: raise it.
    if kind == 'string' then return redis.call('GET', key) end
    return ' ' .. kind
  end
  if value and #value > MAX_VALUE_BYTES then
    return ' ' .. #value .. ' ' .. redis.sha1hex(string.sub(value, 1, MAX_VALUE_BYTES))
  end
  return value
end
