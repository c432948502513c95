-- ACQUIRE: takes the lock if it is free and the token is above everything granted.
-- Restates `rules::acquire`. S, F and FENCE_MS stand before this text (see scripts.rs).
--
-- KEYS[1] lock   KEYS[2] fence   KEYS[3] epoch
-- ARGV[1] owner value   ARGV[2] token   ARGV[3] ttl in ms
-- ARGV[4] the epoch record that this connection knows   ARGV[5] the floor it means
--
-- Every reply carries the token, so that it can be matched to its request:
--   token                                            granted
--   {'HELD', token, fence, now, pttl, value}         another owner has the lock
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'FORGOT', token}                                the record is another: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local got = redis.call('MGET', KEYS[3], KEYS[2], KEYS[1])
if got[1] ~= ARGV[4] then return {'FORGOT', ARGV[2]} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = tonumber(ARGV[2])
local fence = math.max(tonumber(got[2] or now - F), tonumber(ARGV[5]))
if got[3] == ARGV[1] and fence == token then return token end
if got[3] then
  return {'HELD', ARGV[2], fence, now, redis.call('PTTL', KEYS[1]), got[3]}
end
if token > now + S then return {'AHEAD', ARGV[2], fence, now} end
if fence >= token then return {'STALE', ARGV[2], fence, now} end
-- MGET says nothing about a key of another type; NX does not overwrite it.
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[3]) then
  return redis.error_reply('WRONGTYPE the key holds no lock')
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', FENCE_MS + ARGV[3])
return token
