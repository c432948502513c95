-- WAIT: stands in line for the lock, or stands there still. Grants nothing.
-- Restates `rules::wait` and `node::vote`. The constants in capitals stand before this text;
-- see scripts.rs.
--
-- KEYS as in acquire.lua.
-- ARGV[1] owner value   ARGV[2] token   ARGV[3] where to tell it, or empty
--
-- Replies:
--   {'TURN', token, now}                             the lock is reserved for it
--   {'HELD', token, fence, now, pttl, value, place}  so many stand before it
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
local now, token, known = clock(), tonumber(ARGV[2]), redis.call('GET', KEYS[2])
local fence, owner = effective(known, now), redis.call('GET', KEYS[1])
local ahead = token > now + S
if ahead or fence >= token then
  if has_line(known) then
    leave(KEYS[2], ARGV[1])
    serve(KEYS[1], KEYS[2], owner, fence, now, ARGV[1])
  end
  return {ahead and 'AHEAD' or 'STALE', ARGV[2], fence, now}
end
redis.call('ZADD', of_line('line', KEYS[2]), ARGV[2], ARGV[1])
redis.call('ZADD', of_line('seen', KEYS[2]), now, ARGV[1])
redis.call('HSET', of_line('bell', KEYS[2]), ARGV[1], ARGV[3])
for _, kind in ipairs({'line', 'seen', 'bell'}) do
  -- When nobody has asked for so long, all are dead.
  redis.call('PEXPIRE', of_line(kind, KEYS[2]), DEAD / 1000)
end
if not known then
  redis.call('SET', KEYS[2], digits(fence) .. '+', 'PX', FENCE_MS)
elseif not has_line(known) then
  redis.call('SET', KEYS[2], known .. '+', 'KEEPTTL')
end
owner = serve(KEYS[1], KEYS[2], owner, fence, now, ARGV[1])
if owner == ARGV[1] then return {'TURN', ARGV[2], now} end
local place = redis.call('ZRANK', of_line('line', KEYS[2]), ARGV[1])
return {'HELD', ARGV[2], fence, now, redis.call('PTTL', KEYS[1]), owner, place}
