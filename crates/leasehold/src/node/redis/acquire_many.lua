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
local n, call, sub, keys, owners = #ARGV - 1, redis.call, string.sub, KEYS, ARGV
local fences, ttl = call('MGET', unpack(keys, 1, n)), ARGV[n + 1]
local all, replies = true, {owners[1]}
for i = 1, n do
  local known, owner = fences[i], owners[i]
  local token = sub(owner, 42, 57)
  if known and #known == 16 and known < token and FLOOR16 < token
    and call('SET', keys[n + i], owner, 'NX', 'PX', ttl) then
    if sub(known, 1, 7) == sub(token, 1, 7) then
      call('SETRANGE', keys[i], '0', token)
    else
      call('SET', keys[i], token, 'PX', FENCE_MS)
    end
    replies[i + 1] = 1
  else
    all, replies[i + 1] = false, 0
  end
end
return all and owners[1] or replies
