-- Included by the scripts that show since when a lock is waited for.

-- No member of ours is longer: its record, and less than this before it.
local MAX_MEMBER_BYTES = 16384 + 128

-- The first member of a wait queue; false where there is none, or it is none of ours.
local function head_of(queue)
  local found = redis.pcall('ZRANGE', queue, 0, 0)
  if found['err'] then
    -- It was another error, such as a missing right: raise it.
    if redis.call('TYPE', queue)['ok'] == 'zset' then return redis.call('ZRANGE', queue, 0, 0) end
    return false
  end
  local member = found[1]
  return member and #member <= MAX_MEMBER_BYTES and member or false
end
