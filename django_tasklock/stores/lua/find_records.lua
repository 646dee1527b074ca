-- Reads the records of some locks, and returns those that may match a search. It returns too many
-- rather than too few: the caller decides.
-- KEYS  the locks
-- ARGV  1 how many bytes of a key come before the lock's name
--       then lists, each after the number of what it has:
--       the texts that a record must have, byte by byte
--       for each word of the search: how the record has its pid ('text', 'pickle' or 'unknown'; ''
--       for a word that no pid has), and the list of texts of which the record or the name must
--       have one, in lower case
--       parts of records, from the pid to the thread, of processes that are alive: a lock with
--       one of them is left out
-- Returns {number of the key, value, ...}.
--- include value_of_lock
local read, find = 0, string.find
local function take()
  read = read + 1
  return ARGV[read]
end
local function take_list()
  local list = {}
  for i = 1, take() do list[i] = take() end
  return list
end

local name_at, texts, words, alive, any_alive = take() + 1, take_list(), {}, {}, false
for i = 1, take() do words[i] = {pid = take(), texts = take_list()} end
for _, part in ipairs(take_list()) do alive[part], any_alive = true, true end

-- The pid in a pickle, as text; nil where there is none, or it is not written as Python does.
local function pid_of(value)
  local _, at = find(value, '\003pid', 1, true)
  if not at then _, at = find(value, '\003\000\000\000pid', 1, true) end
  if not at then return nil end
  local op = string.sub(value, at + 1, at + 1)
  at = at + (op == '\148' and 2 or op == 'q' and 3 or 1)
  local size = ({K = 1, M = 2, J = 4})[string.sub(value, at, at)]
  if not size or #value < at + size then return nil end
  local pid = 0
  for i = size, 1, -1 do pid = pid * 256 + string.byte(value, at + i) end
  return string.format('%.0f', pid)
end

local function has(word, text, value)
  for _, each in ipairs(word.texts) do
    if find(text, each, 1, true) then return true end
  end
  if word.pid == 'unknown' then return true end
  if word.pid == 'pickle' then
    local pid = pid_of(value)
    return not pid or find(pid, word.texts[1], 1, true)
  end
  return false
end

local function may_match(key, value)
  for _, text in ipairs(texts) do
    if not find(value, text, 1, true) then return false end
  end
  if #words > 0 then
    local text = string.lower(value .. ' ' .. string.sub(key, name_at))
    for _, word in ipairs(words) do
      if not has(word, text, value) then return false end
    end
  end
  if any_alive then
    local first = find(value, 'pid', 1, true)
    local last = first and find(value, 'thread', first, true)
    if last and alive[string.sub(value, first, last)] then return false end
  end
  return true
end

local found = {}
local values = redis.call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  local value = values[i]
  -- MGET returns nothing for a key of another type.
  if not value or #value > MAX_VALUE_BYTES then value = value_of_lock(key) end
  if value and may_match(key, value) then
    found[#found + 1] = i
    found[#found + 1] = value
  end
end
return found
