-- ACQUIRE: takes the lock if it is free and the token is above everything granted.
-- Restates `rules::acquire`. The constants in capitals stand before this text; see
-- scripts.rs.
--
-- KEYS[1] lock   KEYS[2] fence
-- ARGV[1] owner value   ARGV[2] token   ARGV[3] ttl in ms
-- ARGV[4] present if the connection does not know that the token is within the cap, or that the
--         floor is not ahead of the clock
--
-- Every reply carries the token, so that it can be matched to its request:
--   token                                            granted
--   {'GRANTED', token, now}                          granted, and the time was looked at
--   {'HELD', token, fence, now, pttl, value}         another owner has the lock
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local known = redis.call('GET', KEYS[2])

-- How long to keep a fence that is written now: F + S and some hours, in which the TTL of
-- nearly every lock is contained; see `Constants::fence_ttl`.
local keep_ms = #ARGV[3] < 8 and FENCE_MS or string.format('%.0f', FENCE_MS + ARGV[3])

-- The common case, with as few and as cheap calls as can be. Neither the epoch nor the
-- clock needs to be looked at: a fence that is there has not been forgotten, and was above
-- the floor when it was written; a token within the cap once is within it ever after.
-- Numbers of 16 digits (µs, until the year 2286) compare as text. The fence's time to live
-- is renewed when the first 7 digits change, every 1000 s; it is longer than F by hours. (Of
-- the commands that leave it as it is, SETRANGE costs least.)
-- A fence with a line behind it has 17 characters.
if known and #known == 16 and #ARGV[2] == 16 and known < ARGV[2] and FLOOR16 < ARGV[2]
  and not ARGV[4] and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[3]) then
  if #ARGV[3] < 8 and string.sub(known, 1, 7) == string.sub(ARGV[2], 1, 7) then
    redis.call('SETRANGE', KEYS[2], '0', ARGV[2])
  else
    redis.call('SET', KEYS[2], ARGV[2], 'PX', keep_ms)
  end
  return ARGV[2]
end

-- Another claim has the lock, so there is nothing to hand over.
local fence = string.match(known or '', '^(%d+)%+?$')
if fence and #fence == 16 then
  local found = redis.call('MGET', EPOCH_KEY, KEYS[1])
  local holder = found[2]
  if found[1] == EPOCH and holder and holder ~= ARGV[1] and holder ~= TURN then
    local time = redis.call('TIME')
    local now = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
    if fence < FLOOR16 then fence = FLOOR16 end
    return {'HELD', ARGV[2], fence, now, redis.call('PTTL', KEYS[1]), holder}
  end
end

-- PRELUDE
local value, line, token = redis.call('GET', KEYS[1]), has_line(known), tonumber(ARGV[2])
if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
local now = clock()
local owner, first = value ~= TURN and value, nil
if line then owner, known, first = serve(KEYS[1], KEYS[2], value, known, now, ARGV[1]) end
fence = effective(known, now)
-- Again, or handed over. Nothing up to the floor counts: see `View::is_granted_to`.
if owner == ARGV[1] and fence == token and FLOOR < token and is_fence(known, ARGV[2]) then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    redis.call('PEXPIRE', KEYS[2], keep_ms)
  end
  return {'GRANTED', ARGV[2], now}
end
if owner and (owner ~= ARGV[1] or fence > token) then
  return {'HELD', ARGV[2], fence, now, redis.call('PTTL', KEYS[1]), owner}
end
if first and first ~= ARGV[1] then
  return {'HELD', ARGV[2], fence, now, tonumber(TURN_MS), first}
end
if token > now + S then return {'AHEAD', ARGV[2], fence, now} end
if fence >= token then return {'STALE', ARGV[2], fence, now} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[2] .. (line and '+' or ''), 'PX', keep_ms)
-- Otherwise the token is the time of the request.
if line or token > now then note_grant(KEYS[2], ARGV[2], now) end
if line then leave(KEYS[2], ARGV[1]) end
return {'GRANTED', ARGV[2], now}
