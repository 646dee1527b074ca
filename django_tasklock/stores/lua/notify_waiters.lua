-- Included by the scripts that send messages to waiters.

-- How many of the next waiters are sent who the holder is: they take over from it if it dies.
local NOTIFIED_WAITERS = 1

-- A member of the queue is
-- token (22) .. channel id (22) .. number of the question .. ':' .. ttl in ms .. ':' .. value.
local function channel_of(index, member)
  return index .. ':' .. string.sub(member, 23, 44)
end

-- Sends token .. number of the question .. ':' .. news to a waiter, which ignores messages for an
-- earlier question: they are late.
local function send_news(index, member, news)
  local question = string.sub(member, 45, string.find(member, ':', 45, true))
  redis.call('PUBLISH', channel_of(index, member), string.sub(member, 1, 22) .. question .. news)
end

-- Up to `most` members of the queue, from the rank `from` on, whose waiters are subscribed. Removes
-- the others from the queue: they are dead. The waiter `me` runs this script, so it lives.
-- `members`: those members of the queue, if the caller has read them.
local function listening(index, queue, from, most, me, members)
  local found, dead = {}, nil
  repeat
    dead = {}
    members = members or redis.call('ZRANGE', queue, from + #found, from + most - 1)
    if #members == 0 then break end
    local channels = {}
    for i, member in ipairs(members) do channels[i] = channel_of(index, member) end
    local counts = redis.call('PUBSUB', 'NUMSUB', unpack(channels))
    for i, member in ipairs(members) do
      local to = (counts[2 * i] > 0 or member == me) and found or dead
      to[#to + 1] = member
    end
    if #dead > 0 then redis.call('ZREM', queue, unpack(dead)) end
    members = nil
  until #dead == 0
  return found
end

-- The news for the next waiter that another process holds the lock now, and until when.
local function holder_news(fence, now, left, value)
  return table.concat({'=', fence, ':', now, ':', left, ':', value})
end
