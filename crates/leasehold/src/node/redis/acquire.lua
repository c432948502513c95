-- ACQUIRE: takes the lock if it is free and the token is above everything granted.
-- Restates `rules::acquire`. The constants in capitals stand before this text; see
-- scripts.rs.
--
-- KEYS[1] lock   KEYS[2] fence
-- ARGV[1] owner value   ARGV[2] token   ARGV[3] ttl in ms
-- ARGV[4] present if the connection does not know that the token is within the cap
--
-- Every reply carries the token, so that it can be matched to its request:
--   token                                            granted
--   {'GRANTED', token, now}                          granted, and the time was looked at
--   {'HELD', token, fence, now, pttl, value}         another owner has the lock
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local token, known = tonumber(ARGV[2]), redis.call('GET', KEYS[2])

-- The common case, with as few calls as can be. Neither the epoch nor the clock needs to
-- be looked at: a fence that is there has not been forgotten, and was above the floor
-- when it was written; a token within the cap once is within it ever after.
if known and not ARGV[4] and tonumber(known) < token and FLOOR < token
  and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[3]) then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', fence_ms(ARGV[3]))
  return token
end

if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local fence = math.max(tonumber(known or now - F), FLOOR)
local owner = redis.call('GET', KEYS[1])
if owner == ARGV[1] and fence == token then return {'GRANTED', ARGV[2], now} end
if owner then
  return {'HELD', ARGV[2], fence, now, redis.call('PTTL', KEYS[1]), owner}
end
if token > now + S then return {'AHEAD', ARGV[2], fence, now} end
if fence >= token then return {'STALE', ARGV[2], fence, now} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[2], 'PX', fence_ms(ARGV[3]))
return {'GRANTED', ARGV[2], now}
