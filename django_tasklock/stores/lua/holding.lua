-- Put before the verbs that read a lock's key.

-- Longer than any record of ours.
local LONGEST = 16384

-- What stands for a value that is too long to be a record: it begins with a space, as no record does.
local function in_short(value)
  return ' ' .. #value .. ' ' .. redis.sha1hex(string.sub(value, 1, LONGEST))
end

-- What holds a lock, false where nothing does. Somebody may have set a key of another type there:
-- that is a lock too, and its type stands for the value.
local function holding(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    local kind = redis.call('TYPE', key)['ok']
    if kind == 'string' then return redis.call('GET', key) end -- It was another error: a right, say.
    return ' ' .. kind
  end
  if value and #value > LONGEST then return in_short(value) end
  return value
end
