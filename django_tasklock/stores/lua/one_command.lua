-- Runs one plain command.
-- KEYS  its keys
-- ARGV  1 its name  2.. the arguments after the keys
-- Returns its reply.
local command = {ARGV[1], unpack(KEYS)}
for i = 2, #ARGV do command[#command + 1] = ARGV[i] end
return redis.call(unpack(command))
