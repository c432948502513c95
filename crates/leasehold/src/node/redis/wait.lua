-- WAIT: stands in line for the lock, or stands there still.
-- Restates `rules::wait` and `node::vote`. The constants in capitals stand before this text;
-- see scripts.rs.
--
-- KEYS as in acquire.lua.
-- ARGV[1] owner value   ARGV[2] token   ARGV[3] where to tell it, or empty
-- ARGV[4] '0' if no other node votes on it
--
-- Replies:
--   {'GRANTED', token, now}                          the lock was handed over to it
--   {'TURN', token, now}                             the lock is reserved for it
--   {'HELD', token, fence, now, pttl, value, place}  so many stand before it
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local found = redis.call('MGET', EPOCH_KEY, KEYS[2], KEYS[1])
if found[1] ~= EPOCH then return {'FORGOT', ARGV[2]} end
local token, known, holder = tonumber(ARGV[2]), found[2], found[3]

-- The common case: it stands there already, behind others; somebody has the lock; all that is to
-- be done is to note that it lives. Nobody is dead, so there is nobody to serve.
local fence = known and tonumber(string.match(known, '^(%d+)%+$') or '')
if holder and holder ~= ARGV[1] and fence and fence < token and FLOOR < token then
  local name = string.sub(KEYS[2], 16)
  local place = redis.call('ZRANK', 'leasehold:line' .. name, ARGV[1])
  local entry = place and redis.call('HGET', 'leasehold:bell' .. name, ARGV[1])
  if entry and place > 0 and string.match(entry, ':(.*)$') == ARGV[3] then
    local time, seen = redis.call('TIME'), 'leasehold:seen' .. name
    local now = time[1] * 1000000 + time[2]
    redis.call('ZADD', seen, now, ARGV[1])
    local before = string.format('(%.0f', now - DEAD)
    local dead = redis.call('ZRANGEBYSCORE', seen, '-inf', before, 'LIMIT', 0, 1)
    if #dead == 0 then
      fence = math.max(fence, FLOOR)
      return {'HELD', ARGV[2], fence, now, redis.call('PTTL', KEYS[1]), holder, place}
    end
  end
end

-- PRELUDE
local now = clock()
local owner = redis.call('GET', KEYS[1])
fence = effective(known, now)
local ahead = token > now + S
if ahead or fence >= token then
  if has_line(known) then
    leave(KEYS[2], ARGV[1])
    serve(KEYS[1], KEYS[2], owner, known, now, ARGV[1])
  end
  if owner == ARGV[1] and fence == token and is_fence(known, ARGV[2]) then
    -- It waits for other nodes, and keeps this one meanwhile; nothing is cut short.
    if redis.call('PTTL', KEYS[1]) < HANDED_OVER_MS then
      redis.call('PEXPIRE', KEYS[1], HANDED_OVER_MS)
    end
    return {'GRANTED', ARGV[2], now}
  end
  return {ahead and 'AHEAD' or 'STALE', ARGV[2], fence, now}
end
local joins = redis.call('ZADD', of_line('seen', KEYS[2]), now, ARGV[1]) == 1
if joins then redis.call('ZADD', of_line('line', KEYS[2]), ARGV[2], ARGV[1]) end
local since, bell
if not joins then since, bell = look_up(KEYS[2], ARGV[1]) end
if bell ~= ARGV[3] then
  local entry = (since or ARGV[4] or digits(now)) .. ':' .. ARGV[3]
  redis.call('HSET', of_line('bell', KEYS[2]), ARGV[1], entry)
end
if not known then
  known = digits(fence) .. '+'
  redis.call('SET', KEYS[2], known, 'PX', FENCE_MS)
elseif not has_line(known) then
  known = known .. '+'
  redis.call('SET', KEYS[2], known, 'KEEPTTL')
end
owner, known = serve(KEYS[1], KEYS[2], owner, known, now, ARGV[1])
local place = redis.call('ZRANK', of_line('line', KEYS[2]), ARGV[1])
if place == 0 then
  -- When the first, whoever that is, has not asked for so long, all are dead.
  for _, kind in ipairs({'line', 'seen', 'bell'}) do
    redis.call('PEXPIRE', of_line(kind, KEYS[2]), KEPT_MS)
  end
end
if owner == ARGV[1] then return {place and 'TURN' or 'GRANTED', ARGV[2], now} end
fence = effective(known, now)
return {'HELD', ARGV[2], fence, now, redis.call('PTTL', KEYS[1]), owner, place}
