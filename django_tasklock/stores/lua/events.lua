-- Reads a page of the history, the newest event first.
-- KEYS  1 the history
-- ARGV  1 where to begin  2 how many entries to look at  3 only those of this lock and of its
--       permits; '' of all locks  4 how many to return  5 only those with this in their text before
--       the holder, which is written last
-- Returns the last id that was looked at (false: there was none), how many were looked at, and for
-- each event its id and its text.
local wanted, most, text = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local last, looked, found = false, 0, {}
local function before_holder(event)
  -- No text within has these characters: a quote in it is escaped.
  local at = text ~= '' and string.find(event, ',"holder":{', 1, true)
  return at and string.sub(event, 1, at) or event
end
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
  if #found >= 2 * most then break end
  last, looked = entry[1], looked + 1
  local fields = entry[2]
  -- Anybody may have written others.
  if #fields == 4 and fields[1] == 'name' and fields[3] == 'event' and #fields[4] <= 8192 then
    local name = fields[2]
    if (wanted == '' or name == wanted
        or (string.sub(name, 1, #wanted) == wanted
            and string.find(name, '^#[1-9]%d?%d?%d?$', #wanted + 1)))
      and string.find(before_holder(fields[4]), text, 1, true) then
      found[#found + 1] = last
      found[#found + 1] = fields[4]
    end
  end
end
return {last, looked, found}
