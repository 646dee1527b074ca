-- Included where the server's time is needed. Makes `now`, in ms.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
