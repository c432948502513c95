-- EXTEND: keeps the lock for another TTL, and never shortens what is left of it; a node that lacks
-- the lock joins the lease.
-- Restates `rules::extend`. The constants in capitals stand before this text; see
-- scripts.rs.
--
-- KEYS and ARGV as in acquire.lua. Replies:
--   token                                            extended
--   {'HELD', token, fence, now, pttl, value}         another owner has the lock
--   {'LOST', token, fence}                           a newer token was granted here
--   {'AHEAD', token, fence, now}                     this clock is far behind the token
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local token, known = tonumber(ARGV[2]), redis.call('GET', KEYS[2])
local owner = redis.call('GET', KEYS[1])
local keep_ms = #ARGV[3] < 8 and FENCE_MS or string.format('%.0f', FENCE_MS + ARGV[3])

-- The common case: the lock is still there, and so is its fence.
if owner == ARGV[1] and (known == ARGV[2] or known == ARGV[2] .. '+') and FLOOR < token then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    redis.call('PEXPIRE', KEYS[2], keep_ms)
  end
  return token
end

-- PRELUDE
if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
local now = clock()
local fence, line = effective(known, now), has_line(known)
if FLOOR >= token then return {'LOST', ARGV[2], fence} end
if owner == TURN then owner = false end
if owner and owner ~= ARGV[1] then
  return {'HELD', ARGV[2], fence, now, redis.call('PTTL', KEYS[1]), owner}
end
if not owner and fence > token then return {'LOST', ARGV[2], fence} end
if not owner and token > now + S then return {'AHEAD', ARGV[2], fence, now} end
if not owner or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
end
fence = digits(math.max(fence, token)) .. (line and '+' or '')
redis.call('SET', KEYS[2], fence, 'PX', keep_ms)
if line then leave(KEYS[2], ARGV[1]) end
return token
