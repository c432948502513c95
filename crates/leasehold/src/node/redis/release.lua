-- RELEASE: gives the lock back if it is the claim's, and makes sure that a late ACQUIRE
-- or EXTEND of the same claim loses.
-- Restates `rules::release`. The constants in capitals stand before this text; see
-- scripts.rs.
--
-- KEYS as in acquire.lua.
-- ARGV[1] owner value   ARGV[2] token
-- ARGV[3] how long to keep the name taken, in ms   ARGV[4] the value it then has
--         (both only if it is to be kept)
--
-- Replies:
--   token                 it was held here, and is not any more
--   -token                it was not held here
--   {'FORGOT', token}     another epoch: shake hands again
local token, owner = tonumber(ARGV[2]), redis.call('GET', KEYS[1])

-- The common case. The fence under a lock is the lock's token, so one more burns the next,
-- and it lives on for as long as the acquire or extend said.
if owner == ARGV[1] then
  if ARGV[3] then
    redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[3])
  else
    redis.call('DEL', KEYS[1])
  end
  if redis.call('INCR', KEYS[2]) < token + 1 then
    -- It had been evicted, or somebody meddled.
    redis.call('SET', KEYS[2], digits(token + 1), 'PX', fence_ms(ARGV[3] or '0'))
  end
  return token
end

-- Never raise the fence under a live holder.
if owner then return -token end
if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local fence = math.max(tonumber(redis.call('GET', KEYS[2]) or now - F), FLOOR)
if fence <= token and token <= now + S then
  redis.call('SET', KEYS[2], digits(token + 1), 'PX', FENCE_MS)
end
return -token
