-- ACQUIRE for many claims at once, as far as they are the common case of acquire.lua. What
-- a script costs by itself is shared, and so is reading the fences.
--
-- KEYS[1 .. n] fences   KEYS[n+1 .. 2n] locks
-- ARGV[1 .. n] owner values, each with its token of 16 digits at 42 .. 57
-- ARGV[n+1] the ttl of all, in ms (less than 8 digits)
--
-- Replies with n values: the token if the claim was granted, or nil if nothing was done and
-- it must be asked for by itself.
local n = #ARGV - 1
local fences, replies = redis.call('MGET', unpack(KEYS, 1, n)), {}
for i = 1, n do
  local known, token = fences[i], string.sub(ARGV[i], 42, 57)
  replies[i] = false
  if known and #known == 16 and known < token and FLOOR16 < token
    and redis.call('SET', KEYS[n + i], ARGV[i], 'NX', 'PX', ARGV[n + 1]) then
    if string.sub(known, 1, 7) == string.sub(token, 1, 7) then
      redis.call('SET', KEYS[i], token, 'KEEPTTL')
    else
      redis.call('SET', KEYS[i], token, 'PX', FENCE_MS)
    end
    replies[i] = token
  end
end
return replies
