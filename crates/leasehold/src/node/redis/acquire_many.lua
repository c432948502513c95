-- ACQUIRE for many claims at once, as far as they are the common case of acquire.lua. What
-- a script costs by itself is shared, and so is reading the fences.
--
-- KEYS[1 .. n] fences   KEYS[n+1 .. 2n] locks
-- ARGV[1 .. n] owner values, each with its token of 16 digits at 42 .. 57
-- ARGV[n+1] the ttl of all, in ms (less than 8 digits)
--
-- Replies:
--   the first owner value     all were granted
--   n + 1 values              the first owner value, and then for each claim 1 if it was granted,
--                             0 if nothing was done and it must be asked for by itself
-- Locals cost a loop less than globals.
local redis, string = redis, string
local n, keys, owners = #ARGV - 1, KEYS, ARGV
local fences, ttl = redis.call('MGET', unpack(keys, 1, n)), ARGV[n + 1]
local all, replies = true, {owners[1]}
for i = 1, n do
  local known, owner, granted = fences[i], owners[i], false
  local token = string.sub(owner, 42, 57)
  -- @acquire_free(keys[n + i], keys[i], known, owner, token, ttl, FENCE_MS)
  all = all and granted
  replies[i + 1] = granted and 1 or 0
end
return all and owners[1] or replies
