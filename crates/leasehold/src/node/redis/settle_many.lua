-- settle.lua for many claims at once.
--
-- KEYS locks   ARGV owner values. Replies with the first owner value, and then for each
-- claim 1 if it was held here, 0 if not.
local owners = redis.call('MGET', unpack(KEYS))
local held, replies = {}, {ARGV[1]}
for i = 1, #KEYS do
  if owners[i] == ARGV[i] then
    held[#held + 1] = KEYS[i]
    replies[i + 1] = 1
  else
    replies[i + 1] = 0
  end
end
if #held > 0 then redis.call('DEL', unpack(held)) end
return replies
