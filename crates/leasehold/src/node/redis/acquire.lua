-- ACQUIRE: takes the lock if it is free and the token is above everything granted.
-- Restates `rules::acquire` and `record::vote`. The constants in capitals stand before this text; see
-- scripts.rs. Lines that begin with `-- @` are replaced; see fragments.lua.
--
-- KEYS[1] lock   KEYS[2] fence, unless it is `fence_of` the lock   the others: see fragments.lua
-- ARGV[1] owner value, with a token of 16 digits at 42 .. 57   ARGV[2] ttl in ms
-- ARGV[3] present if the connection does not know that the token is within the cap, or that the
--         floor is not ahead of the clock
-- ARGV[4] the token, if the owner value has it elsewhere
--
-- Every reply carries the token, so that it can be matched to its request:
--   token                                            granted
--   {'GRANTED', token, now}                          granted, and the time was looked at
--   {'HELD', token, fence, now, pttl, value}         another owner has the lock
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local lock, mine, ttl = KEYS[1], ARGV[1], ARGV[2]
local fence_key, token = KEYS[2] or @fence_of(lock), ARGV[4] or string.sub(mine, 42, 57)
local known = redis.call('GET', fence_key)
-- @fence_ttl(ttl)
if not ARGV[3] then
  local granted
  -- @acquire_free(lock, fence_key, known, mine, token, ttl, keep_ms)
  if granted then return token end
end

-- @keys
-- Another claim has the lock, so there is nothing to hand over.
local fence = string.match(known or '', '^(%d+)%+?$')
if fence and #fence == 16 then
  local found = redis.call('MGET', EPOCH_KEY, LOCK)
  local holder = found[2]
  if found[1] == EPOCH and holder and holder ~= mine and holder ~= TURN then
    -- @clock
    if fence < FLOOR16 then fence = FLOOR16 end
    return {'HELD', token, fence, now, redis.call('PTTL', LOCK), holder}
  end
end

-- @prelude
local value, line, number = redis.call('GET', LOCK), has_line(known), tonumber(token)
if redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', token} end
local now = clock()
local owner, first = value ~= TURN and value, nil
if line then owner, known, first = serve(value, known, now, mine) end
fence = effective(known, now)
-- Again, or handed over. Nothing up to the floor counts: see `View::is_granted_to`.
if owner == mine and fence == number and FLOOR < number and @is_fence(known, token) then
  if redis.call('PTTL', LOCK) < tonumber(ttl) then
    redis.call('PEXPIRE', LOCK, ttl)
    redis.call('PEXPIRE', FENCE, keep_ms)
  end
  return {'GRANTED', token, now}
end
if owner and (owner ~= mine or fence > number) then
  return {'HELD', token, fence, now, redis.call('PTTL', LOCK), owner}
end
if first and first ~= mine then
  return {'HELD', token, fence, now, tonumber(TURN_MS), first}
end
if number > now + S then return {'AHEAD', token, fence, now} end
if fence >= number then return {'STALE', token, fence, now} end
redis.call('SET', LOCK, mine, 'PX', ttl)
redis.call('SET', FENCE, @fence_text(token, line), 'PX', keep_ms)
-- Otherwise the token is the time of the request.
if line or number > now then note_grant(token, now) end
if line then leave(mine) end
return {'GRANTED', token, now}
