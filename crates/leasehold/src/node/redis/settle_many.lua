-- settle.lua for many claims at once.
--
-- KEYS[1 .. n] locks   KEYS[n+1 .. 2n] fences   ARGV owner values. Replies with the first
-- owner value, and then for each claim 1 if it was held here, 0 if not.
local n = #ARGV
local known = redis.call('MGET', unpack(KEYS))
local held, replies, lines = {}, {ARGV[1]}, {}
for i = 1, n do
  if known[i] == ARGV[i] then
    held[#held + 1] = KEYS[i]
    replies[i + 1] = 1
    local fence = known[n + i]
    if fence and string.byte(fence, -1) == 43 then lines[#lines + 1] = i end
  else
    replies[i + 1] = 0
  end
end
if #held > 0 then redis.call('DEL', unpack(held)) end
if #lines == 0 then return replies end

-- PRELUDE
for _, i in ipairs(lines) do
  serve(KEYS[i], KEYS[n + i], nil, known[n + i], clock(), '')
end
return replies
