-- RELEASE where nothing of the claim can arrive late (`Call::nothing_in_flight`): the fence, which
-- is the lock's token, need not be raised.
--
-- KEYS as in acquire.lua.   ARGV[1] owner value. Replies:
--   the owner value     it was held here, and is not any more
--   nil                 it was not held here
local lock, mine = KEYS[1], ARGV[1]
local known = redis.call('MGET', lock, KEYS[2] or @fence_of(lock))
local held = known[1] == mine
if not (known[2] and @has_line(known[2])) then
  if not held then return false end
  redis.call('DEL', lock)
  return mine
end

-- @keys
if held then
  -- @hand_over
  if hand_over(known[2]) then return mine end
  redis.call('DEL', LOCK)
  known[1] = false
end

-- @prelude
-- Also where it was not held: the lock may have expired, and nothing else has served the line.
serve(known[1], known[2], clock(), '')
return held and mine
