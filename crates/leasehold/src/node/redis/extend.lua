-- EXTEND: keeps the lock for another TTL, and never shortens what is left of it; a node that lacks
-- the lock joins the lease.
-- Restates `rules::extend`. The constants in capitals stand before this text; see scripts.rs. Lines
-- that begin with `-- @` are replaced; see fragments.lua.
--
-- KEYS and ARGV as in acquire.lua. Replies:
--   token                                            extended
--   {'HELD', token, fence, now, pttl, value}         another owner has the lock
--   {'LOST', token, fence}                           a newer token was granted here
--   {'AHEAD', token, fence, now}                     this clock is far behind the token
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local known, owner = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
local token, extended = tonumber(ARGV[2]), nil
-- @fence_ttl(ARGV[3])
if #ARGV[2] == 16 then
  -- @extend_held(KEYS[1], KEYS[2], owner, known, ARGV[1], ARGV[2], ARGV[3], keep_ms)
end
if extended then return token end

-- @keys
-- @prelude
if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
local now = clock()
local fence, line = effective(known, now), has_line(known)
if FLOOR >= token then return {'LOST', ARGV[2], fence} end
if owner == TURN then owner = false end
if owner and owner ~= ARGV[1] then
  return {'HELD', ARGV[2], fence, now, redis.call('PTTL', LOCK), owner}
end
if not owner and fence > token then return {'LOST', ARGV[2], fence} end
if not owner and token > now + S then return {'AHEAD', ARGV[2], fence, now} end
if not owner or redis.call('PTTL', LOCK) < tonumber(ARGV[3]) then
  redis.call('SET', LOCK, ARGV[1], 'PX', ARGV[3])
end
fence = @fence_text(digits(math.max(fence, token)), line)
redis.call('SET', FENCE, fence, 'PX', keep_ms)
if line then leave(ARGV[1]) end
return token
