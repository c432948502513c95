-- settle.lua for many claims at once.
--
-- KEYS[1 .. n] locks   KEYS[n+1 .. 2n] fences   ARGV owner values.
-- Replies as acquire_many.lua, with 1 for each that was held here, and is not any more.
local n, keys, owners = #ARGV, KEYS, ARGV
local known, all, lines = redis.call('MGET', unpack(keys)), true, false
for i = 1, n do
  local fence = known[n + i]
  all = all and known[i] == owners[i]
  lines = lines or fence and string.byte(fence, -1) == 43
end
if all and not lines then
  redis.call('DEL', unpack(keys, 1, n))
  return owners[1]
end

-- PRELUDE
local replies = {owners[1]}
for i = 1, n do
  local held = known[i] == owners[i]
  replies[i + 1] = held and redis.call('DEL', keys[i]) or 0
  if has_line(known[n + i]) then
    serve(keys[i], keys[n + i], not held and known[i], known[n + i], clock(), '')
  end
end
return replies
