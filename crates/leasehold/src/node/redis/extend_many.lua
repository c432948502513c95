-- EXTEND for many claims at once, as far as they are the common case of extend.lua.
--
-- KEYS[1 .. n] locks   KEYS[n+1 .. 2n] fences
-- ARGV[1 .. n] owner values, each with its token of 16 digits at 42 .. 57
-- ARGV[n+1] the ttl of all, in ms (less than 8 digits)
--
-- Replies with n values: the token if the claim was extended, or nil if nothing was done and
-- it must be asked for by itself.
local n = #ARGV - 1
local known, replies = redis.call('MGET', unpack(KEYS)), {}
for i = 1, n do
  local fence, token = known[n + i], string.sub(ARGV[i], 42, 57)
  replies[i] = false
  if known[i] == ARGV[i] and FLOOR16 < token and (fence == token or fence == token .. '+') then
    redis.call('PEXPIRE', KEYS[i], ARGV[n + 1])
    redis.call('PEXPIRE', KEYS[n + i], FENCE_MS)
    replies[i] = token
  end
end
return replies
