-- A lock without a token, where one command of the server does not do: ACQUIRE when the lock is
-- not free, EXTEND, and RELEASE that keeps the name taken. No fence is touched.
-- Restates what the rules say of claims without a token.
--
-- KEYS as in acquire.lua.
-- ARGV[1] owner value   ARGV[2] '0'   ARGV[3] ttl in ms
-- ARGV[4] nothing: ACQUIRE; 'L': ACQUIRE of a lock that a plain SET has taken although there may be
--         a line; 'X': EXTEND; else RELEASE, and the value that is kept
--
-- Replies:
--   {'GRANTED', '0', now}                            it is the claim's
--   {'HELD', '0', fence, now, pttl, value}           another owner has the lock
--   {'LOST', '0', fence}                             no owner has the lock
--   {'RELEASED', '0', 1 or 0}                        whether it was held here
--   {'FORGOT', '0'}                                  another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
-- @keys
-- @prelude
local value, known = redis.call('GET', LOCK), redis.call('GET', FENCE)
local owner, first = value ~= TURN and value, nil
local acquires = not ARGV[4] or ARGV[4] == 'L'
if not acquires and ARGV[4] ~= 'X' then
  if owner ~= ARGV[1] then
    -- The lock may have expired, and nothing else has served the line.
    if has_line(known) then
      if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
      serve(value, known, clock(), '')
    end
    return {'RELEASED', ARGV[2], 0}
  end
  redis.call('SET', LOCK, ARGV[4], 'PX', ARGV[3])
  return {'RELEASED', ARGV[2], 1}
end
local now = clock()
if acquires and has_line(known) and (owner ~= ARGV[1] or ARGV[4]) then
  if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
  if owner == ARGV[1] then
    redis.call('DEL', LOCK)
    value = false
  end
  owner, known, first = serve(value, known, now, ARGV[1])
end
if first then
  return {'HELD', ARGV[2], effective(known, now), now, tonumber(TURN_MS), first}
end
if owner and owner ~= ARGV[1] then
  local fence = effective(known, now)
  return {'HELD', ARGV[2], fence, now, redis.call('PTTL', LOCK), owner}
end
if not owner and not acquires then return {'LOST', ARGV[2], effective(known, now)} end
if not owner or redis.call('PTTL', LOCK) < tonumber(ARGV[3]) then
  redis.call('SET', LOCK, ARGV[1], 'PX', ARGV[3])
end
return {'GRANTED', ARGV[2], now}
