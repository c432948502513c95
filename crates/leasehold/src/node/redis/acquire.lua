-- ACQUIRE: takes the lock if it is free and the token is above everything granted.
-- Restates `rules::acquire` and `record::vote`. The constants in capitals stand before this text; see
-- scripts.rs. Lines that begin with `-- @` are replaced; see fragments.lua.
--
-- KEYS[1] lock   KEYS[2] fence   the others: see fragments.lua
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
-- @fence_ttl(ARGV[3])
if not ARGV[4] and #ARGV[2] == 16 then
  local granted
  -- @acquire_free(KEYS[1], KEYS[2], known, ARGV[1], ARGV[2], ARGV[3], keep_ms)
  if granted then return ARGV[2] end
end

-- @keys
-- Another claim has the lock, so there is nothing to hand over.
local fence = string.match(known or '', '^(%d+)%+?$')
if fence and #fence == 16 then
  local found = redis.call('MGET', EPOCH_KEY, LOCK)
  local holder = found[2]
  if found[1] == EPOCH and holder and holder ~= ARGV[1] and holder ~= TURN then
    -- @clock
    if fence < FLOOR16 then fence = FLOOR16 end
    return {'HELD', ARGV[2], fence, now, redis.call('PTTL', LOCK), holder}
  end
end

-- @prelude
local value, line, token = redis.call('GET', LOCK), has_line(known), tonumber(ARGV[2])
if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
local now = clock()
local owner, first = value ~= TURN and value, nil
if line then owner, known, first = serve(value, known, now, ARGV[1]) end
fence = effective(known, now)
-- Again, or handed over. Nothing up to the floor counts: see `View::is_granted_to`.
if owner == ARGV[1] and fence == token and FLOOR < token and @is_fence(known, ARGV[2]) then
  if redis.call('PTTL', LOCK) < tonumber(ARGV[3]) then
    redis.call('PEXPIRE', LOCK, ARGV[3])
    redis.call('PEXPIRE', FENCE, keep_ms)
  end
  return {'GRANTED', ARGV[2], now}
end
if owner and (owner ~= ARGV[1] or fence > token) then
  return {'HELD', ARGV[2], fence, now, redis.call('PTTL', LOCK), owner}
end
if first and first ~= ARGV[1] then
  return {'HELD', ARGV[2], fence, now, tonumber(TURN_MS), first}
end
if token > now + S then return {'AHEAD', ARGV[2], fence, now} end
if fence >= token then return {'STALE', ARGV[2], fence, now} end
redis.call('SET', LOCK, ARGV[1], 'PX', ARGV[3])
redis.call('SET', FENCE, @fence_text(ARGV[2], line), 'PX', keep_ms)
-- Otherwise the token is the time of the request.
if line or token > now then note_grant(ARGV[2], now) end
if line then leave(ARGV[1]) end
return {'GRANTED', ARGV[2], now}
