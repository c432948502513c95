-- RELEASE where nothing of the claim can arrive late (`Call::is_settled`): the fence, which
-- is the lock's token, need not be raised.
--
-- KEYS[1] lock   ARGV[1] owner value. Replies:
--   the owner value     it was held here, and is not any more
--   nil                 it was not held here
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
redis.call('DEL', KEYS[1])
return ARGV[1]
