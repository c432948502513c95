-- EXTEND: keeps the lock for another TTL; a node that lacks it joins the lease.
-- Restates `rules::extend`. S, F and FENCE_MS stand before this text (see scripts.rs).
--
-- KEYS and ARGV as in acquire.lua. Replies:
--   token                                            extended
--   {'HELD', token, fence, now, pttl, value}         another owner has the lock
--   {'LOST', token, fence}                           a newer token was granted here
--   {'AHEAD', token, fence, now}                     this clock is far behind the token
--   {'FORGOT', token}                                the record is another: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local got = redis.call('MGET', KEYS[3], KEYS[2], KEYS[1])
if got[1] ~= ARGV[4] then return {'FORGOT', ARGV[2]} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token, floor = tonumber(ARGV[2]), tonumber(ARGV[5])
local fence = math.max(tonumber(got[2] or now - F), floor)
if floor >= token then return {'LOST', ARGV[2], fence} end
if got[3] then
  if got[3] ~= ARGV[1] then
    return {'HELD', ARGV[2], fence, now, redis.call('PTTL', KEYS[1]), got[3]}
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
else
  if fence > token then return {'LOST', ARGV[2], fence} end
  if token > now + S then return {'AHEAD', ARGV[2], fence, now} end
  if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[3]) then
    return redis.error_reply('WRONGTYPE the key holds no lock')
  end
end
-- '%.0f': a token has more digits than '..' and tostring() keep.
local raised = string.format('%.0f', math.max(fence, token))
redis.call('SET', KEYS[2], raised, 'PX', FENCE_MS + ARGV[3])
return token
