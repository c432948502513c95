-- EXTEND for many claims at once, as far as they are the common case of extend.lua.
--
-- KEYS[1 .. n] locks   KEYS[n+1 .. 2n] fences
-- ARGV[1 .. n] owner values, each with its token of 16 digits at 42 .. 57
-- ARGV[n+1] the ttl of all, in ms (less than 8 digits)
--
-- Replies as acquire_many.lua.
local n, call, sub, keys, owners = #ARGV - 1, redis.call, string.sub, KEYS, ARGV
local known, ttl = call('MGET', unpack(keys)), ARGV[n + 1]
local ttl_ms = tonumber(ttl)
local all, replies = true, {owners[1]}
for i = 1, n do
  local fence, owner = known[n + i], owners[i]
  local token = sub(owner, 42, 57)
  if known[i] == owner and FLOOR16 < token and (fence == token or fence == token .. '+') then
    if call('PTTL', keys[i]) < ttl_ms then
      call('PEXPIRE', keys[i], ttl)
      call('PEXPIRE', keys[n + i], FENCE_MS)
    end
    replies[i + 1] = 1
  else
    all, replies[i + 1] = false, 0
  end
end
return all and owners[1] or replies
