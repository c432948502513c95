-- EXTEND for many claims at once, as far as they are the common case of extend.lua.
--
-- KEYS[1 .. n] locks   KEYS[n+1 .. 2n] fences
-- ARGV[1 .. n] owner values, each with its token of 16 digits at 42 .. 57
-- ARGV[n+1] the ttl of all, in ms (less than 8 digits)
--
-- Replies as acquire_many.lua.
-- Locals cost a loop less than globals.
local redis, string = redis, string
local n, keys, owners = #ARGV - 1, KEYS, ARGV
local known, ttl = redis.call('MGET', unpack(keys)), ARGV[n + 1]
local all, replies = true, {owners[1]}
for i = 1, n do
  local fence, owner, extended = known[n + i], owners[i], false
  local token = string.sub(owner, 42, 57)
  -- @extend_held(keys[i], keys[n + i], known[i], fence, owner, token, ttl, FENCE_MS)
  all = all and extended
  replies[i + 1] = extended and 1 or 0
end
return all and owners[1] or replies
