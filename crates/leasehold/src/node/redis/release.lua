-- RELEASE: gives the lock back if it is the claim's, and makes sure that a late ACQUIRE
-- or EXTEND of the same claim loses.
-- Restates `rules::release`. S, F and FENCE_MS stand before this text (see scripts.rs).
--
-- KEYS as in acquire.lua.
-- ARGV[1] owner value   ARGV[2] token   ARGV[3] how long to keep the name taken, in ms, or 0
-- ARGV[4] the epoch record that this connection knows   ARGV[5] the floor it means
-- ARGV[6] the value of a lock that is kept, if it is
--
-- Replies:
--   token                 it was held here, and is not any more
--   -token                it was not held here
--   {'FORGOT', token}     the record is another: shake hands again
local got = redis.call('MGET', KEYS[3], KEYS[2], KEYS[1])
if got[1] ~= ARGV[4] then return {'FORGOT', ARGV[2]} end
local token, held = tonumber(ARGV[2]), got[3] == ARGV[1]
-- Never raise the fence under a live holder.
if got[3] and not held then return -token end
local keep = tonumber(ARGV[3])
if held and keep > 0 then
  redis.call('SET', KEYS[1], ARGV[6], 'PX', ARGV[3])
elseif held then
  redis.call('DEL', KEYS[1])
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local fence = math.max(tonumber(got[2] or now - F), tonumber(ARGV[5]))
if fence <= token and token <= now + S then
  redis.call('SET', KEYS[2], string.format('%.0f', token + 1), 'PX', FENCE_MS + keep)
end
return held and token or -token
