-- delete.lua for many claims at once, as far as there are no waiters.
--
-- KEYS[1 .. n] locks   KEYS[n+1 .. 2n] fences   ARGV owner values.
-- Replies as acquire_many.lua: 1 for each claim that was held here and is not any more, or was not
-- held here (2); 0 if nothing was done, because there are waiters.
-- Locals cost a loop less than globals.
local redis, string = redis, string
local n, keys, owners = #ARGV, KEYS, ARGV
local known, all = redis.call('MGET', unpack(keys)), true
for i = 1, n do
  local fence = known[n + i]
  all = all and known[i] == owners[i] and not (fence and @has_line(fence))
end
if all then
  redis.call('DEL', unpack(keys, 1, n))
  return owners[1]
end
local replies = {owners[1]}
for i = 1, n do
  local fence = known[n + i]
  if fence and @has_line(fence) then
    replies[i + 1] = 0
  elseif known[i] == owners[i] then
    replies[i + 1] = redis.call('DEL', keys[i])
  else
    replies[i + 1] = 2
  end
end
return replies
