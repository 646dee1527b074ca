-- Put before the verbs that read a lock's key.

-- Longer than any record of ours.
local LONGEST = 16384

-- What holds a lock, false where nothing does. Somebody may have set a key of another type there, or
-- a long value: that is a lock too, and a few words stand for it. They begin with a space, as no
-- record does.
local function holding(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    local kind = redis.call('TYPE', key)['ok']
    if kind == 'string' then return redis.call('GET', key) end -- It was another error: a right, say.
    return ' ' .. kind
  end
  if value and #value > LONGEST then
    return ' ' .. #value .. ' ' .. redis.sha1hex(string.sub(value, 1, LONGEST))
  end
  return value
end
