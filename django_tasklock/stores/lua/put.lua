-- Makes some changes, or none.
-- KEYS  1 index  2 fences  3 index of the notes that are listed
--       4.. for each change: its key, the lock's own queue, the queue of permits, their gate
-- ARGV  1 what every record with a version has  2 the least fence, or ''; then for each change:
--       1 what must be there: 'free', 'any', 'held', 'foreign'
--       2 the token that is held, or the digest of other code's value
--       3 what a record with the version that is held has, or ''
--       4 the value to write, or 'keep', or '' to remove what is there
--       5 its ttl in ms, or ''
--       6 its name  7 its token, or ''  8 what a record with its version has, or ''
-- Returns {1 if all were made, otherwise 0, for each change what look.lua says}.
local FIELDS = 8
local index, fences, listed = KEYS[1], KEYS[2], KEYS[3]
local versioned, least = ARGV[1], ARGV[2] ~= '' and ARGV[2] or nil

--- include look
--- include hand_over

local function has(value, part) return string.find(value, part, 1, true) end

local changes, names, made = {}, {}, true
for i = 1, (#ARGV - 2) / FIELDS do
  local at, keys = 2 + FIELDS * (i - 1), 4 * i
  local change = {
    key = KEYS[keys], own = KEYS[keys + 1], permits = KEYS[keys + 2], gate = KEYS[keys + 3],
    expect = ARGV[at + 1], proof = ARGV[at + 2], version = ARGV[at + 3],
    value = ARGV[at + 4], ttl = ARGV[at + 5], name = ARGV[at + 6],
    token = ARGV[at + 7], new_version = ARGV[at + 8],
  }
  changes[i], names[i] = change, change.name
  change.is_lock = string.sub(change.name, 1, 1) ~= ' '
  local there = redis.call('GET', change.key)
  if not there and change.is_lock and redis.call('EXISTS', change.own, change.permits) > 0 then
    -- The last lease has expired, and no waiter was notified.
    hand_over(change.key, change.name, change.own, change.permits, change.gate)
    there = redis.call('GET', change.key)
  end
  change.there = there
  if there then
    local token, expected = change.token, change.expect == 'any'
    if change.expect == 'held' then
      expected = has(there, change.proof) and has(there, change.version)
    elseif change.expect == 'foreign' then
      expected = redis.sha1hex(string.sub(there, 1, MAX_VALUE_BYTES)) == change.proof
    end
    change.same = token ~= '' and has(there, token) and has(there, change.new_version)
      and (change.new_version ~= '' or not has(there, versioned))
    made = made and (expected or change.same)
  else
    made = made and (change.expect == 'free' or change.expect == 'any')
  end
end

-- Sets the end of what is there, in the index too.
local function set_end(change)
  local index_of_it = change.is_lock and index
    or string.sub(change.name, 1, 8) == ' queued ' and listed
  local ttl, stop = change.ttl, '+inf'
  if ttl == '' then
    redis.call('PERSIST', change.key)
  else
    redis.call('PEXPIRE', change.key, ttl)
    --- include now
    stop = string.format('%d', now + ttl)
    -- So that this index does not grow without end; lease.lua does it for the other one.
    if index_of_it == listed then redis.call('ZREMRANGEBYSCORE', listed, '-inf', now - 1) end
  end
  if index_of_it then redis.call('ZADD', index_of_it, stop, change.name) end
end

for _, change in ipairs(made and changes or {}) do
  local key, name, there = change.key, change.name, change.there
  -- A server that is full refuses a script's first write if that needs memory, and no later one. So
  -- where something is there, the first write is one that needs none.
  if change.value == '' then
    if there then
      redis.call('ZREM', change.is_lock and index or listed, name)
      local own, permits, gate = change.own, change.permits, change.gate
      if not (change.is_lock and hand_over(key, name, own, permits, gate)) then
        redis.call('HDEL', fences, name)
        redis.call('DEL', key)
      end
    end
  elseif change.value == 'keep' then
    if there and change.ttl ~= '' then set_end(change) end
  else
    local stays = there and (change.same or change.expect == 'held')
    if stays then set_end(change) end
    if not change.same then redis.call('SET', key, change.value, 'KEEPTTL') end
    if not stays then
      if change.is_lock then lease(name, change.ttl, least) end
      set_end(change)
    elseif change.is_lock then
      for _, field in ipairs(least and {'', name} or {}) do
        local fence = tonumber(redis.call('HGET', fences, field)) or 0
        if fence < tonumber(least) then redis.call('HSET', fences, field, least) end
      end
      if not change.same then tell_next(key, name, change.own, change.permits) end
    end
  end
end
return {made and 1 or 0, look(4, 4, fences, names)}
