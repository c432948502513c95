-- WAIT: stands in line for the lock, or stands there still.
-- Restates `rules::wait` and `node::vote`. The constants in capitals stand before this text;
-- see scripts.rs.
--
-- KEYS as in acquire.lua.
-- ARGV[1] owner value   ARGV[2] token   ARGV[3] where to tell it and the proof of a grant, or empty
-- ARGV[4] '0' if no other node votes on it
--
-- Replies:
--   {'GRANTED', token, now}                          the lock was handed over to it
--   {'TURN', token, now}                             it is its turn: it should send ACQUIRE
--   {'HELD', token, fence, now, pttl, value, place}  so many stand before it
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local call, sub, owner, token = redis.call, string.sub, ARGV[1], ARGV[2]
local found = call('MGET', EPOCH_KEY, KEYS[2], KEYS[1])
if found[1] ~= EPOCH then return {'FORGOT', token} end
local known, holder, joins = found[2], found[3], nil

-- The common case, at less than half of the cost: somebody has the lock, and others stand in line
-- before this one. All that is to be done is to enter it there, or to note that it lives. Numbers of
-- 16 digits compare as text, as in hand_over.lua.
if holder and holder ~= owner and holder ~= TURN and known and #known == 17 and string.byte(known, 17) == 43
  and #token == 16 and known < token and FLOOR16 < token then
  local name, time = sub(KEYS[2], 16), call('TIME')
  local us = sub('000000', #time[2] + 1) .. time[2]
  local now = time[1] .. us
  if (token <= now or tonumber(token) <= now + S) and string.find(known, '^%d+%+$') then
    local line, seen = 'leasehold:line' .. name, 'leasehold:seen' .. name
    local bells = 'leasehold:bell' .. name
    joins = call('ZADD', seen, now, owner) == 1
    local entry
    if joins then
      entry = (ARGV[4] or now) .. ':' .. ARGV[3]
      call('ZADD', line, token, owner)
      call('HSET', bells, owner, entry)
    else
      entry = call('HGET', bells, owner)
    end
    -- All three keys are refreshed together, so one of them tells for all.
    if call('PTTL', line) < REFRESH_MS then
      call('PEXPIRE', line, KEPT_MS)
      call('PEXPIRE', seen, KEPT_MS)
      call('PEXPIRE', bells, KEPT_MS)
    end
    local place = call('ZRANK', line, owner)
    local behind = place and place > 0 and entry and string.match(entry, ':(.*)$') == ARGV[3]
    if behind and place < 100 then
      -- Those further back leave it to the first hundred to look for the dead, and for a first whose
      -- ticket was overtaken. An owner value tells its ticket.
      local dead = '(' .. (time[1] - DEAD_S) .. us
      local first = call('ZRANGE', line, '0', '0')[1]
      local _, last = string.find(first, '^:%d+:', 41)
      local ticket = sub(first, 42, 57)
      behind = last == 58 and known < ticket and FLOOR16 < ticket
        and not call('ZRANGEBYSCORE', seen, '-inf', dead, 'LIMIT', '0', '1')[1]
    end
    if behind then
      local fence = sub(known, 1, 16)
      if fence < FLOOR16 then fence = FLOOR16 end
      return {'HELD', token, fence, now, call('PTTL', KEYS[1]), holder, place}
    end
  end
end

-- PRELUDE
local now, value = clock(), redis.call('GET', KEYS[1])
local fence, first = effective(known, now), nil
owner, token = value ~= TURN and value, tonumber(token)
local ahead = token > now + S
if ahead or fence >= token then
  if has_line(known) then
    leave(KEYS[2], ARGV[1])
    owner, known = serve(KEYS[1], KEYS[2], value, known, now, ARGV[1], true)
    fence = effective(known, now)
  end
  if owner == ARGV[1] and fence == token and FLOOR < token and is_fence(known, ARGV[2]) then
    -- It waits for other nodes, and keeps this one meanwhile; nothing is cut short.
    if redis.call('PTTL', KEYS[1]) < tonumber(HANDED_OVER_MS) then
      redis.call('PEXPIRE', KEYS[1], HANDED_OVER_MS)
    end
    return {'GRANTED', ARGV[2], now}
  end
  return {ahead and 'AHEAD' or 'STALE', ARGV[2], fence, now}
end
if joins == nil then redis.call('ZADD', of_line('seen', KEYS[2]), now, ARGV[1]) end
if not joins then joins = redis.call('ZADD', of_line('line', KEYS[2]), ARGV[2], ARGV[1]) == 1 end
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
if redis.call('PTTL', of_line('line', KEYS[2])) < REFRESH_MS then
  for _, kind in ipairs({'line', 'seen', 'bell'}) do
    redis.call('PEXPIRE', of_line(kind, KEYS[2]), KEPT_MS)
  end
end
owner, known, first = serve(KEYS[1], KEYS[2], value, known, now, ARGV[1], true)
local place = redis.call('ZRANK', of_line('line', KEYS[2]), ARGV[1])
if owner == ARGV[1] or first == ARGV[1] then return {place and 'TURN' or 'GRANTED', ARGV[2], now} end
fence = effective(known, now)
if fence >= token then
  -- The lock was just handed to a waiter whose ticket is not below this one: this ticket cannot win
  -- any more, and does not stay in line.
  serve(KEYS[1], KEYS[2], owner, known, now, ARGV[1], true)
  return {'STALE', ARGV[2], fence, now}
end
local pttl = first and tonumber(TURN_MS) or redis.call('PTTL', KEYS[1])
return {'HELD', ARGV[2], fence, now, pttl, first or owner, place}
