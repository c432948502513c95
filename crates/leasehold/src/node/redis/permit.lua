-- The requests of a semaphore.
-- Restates `vote_on_permit` of semaphore.rs, and `rules::acquire` and `rules::release` for the lock of a
-- permit, which has no line of its own. The constants in capitals stand before this text; see scripts.rs.
-- Lines that begin with `-- @` are replaced; see fragments.lua.
--
-- KEYS[1] lock   KEYS[2] fence   (those of the permit; unused by 'W' and 'L')
-- KEYS[3] to [5] line, seen, bell   KEYS[6] number of permits   (those of the semaphore)
-- KEYS[7] epoch   the others: the locks of permits, in the order in which to search for a free one
-- ARGV[1] owner value   ARGV[2] token
-- ARGV[3] 'A': ACQUIRE of a permit, 'R': RELEASE of one, 'W': WAIT, 'L': leave the line
-- ARGV[4] the semaphore   ARGV[5] the owner value under which the client stands in line, or empty
-- ARGV[6] how many permits there are, or empty   ARGV[7] the number of the first permit to search
-- 'A': ARGV[8] ttl in ms
-- 'R': ARGV[8] how long to keep the name taken, in ms   ARGV[9] the value it then has (if it is to be kept)
-- 'W': ARGV[8] the channel for notifications, or empty
-- 'L': ARGV[8] present if the number of permits is to be changed
--
-- Replies:
--   {'GRANTED', token, now}                          it has the permit
--   {'FREE', token, permit}                          this permit is free for the client
--   {'HELD', token, fence, now, pttl, value[, place]}  another owner has the permit, or is first in line
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'PERMITS', token, permits}                      the semaphore has another number of permits
--   {'RELEASED', token, 1 or 0}                      whether it had the permit
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
local LOCK, FENCE, LINE, SEEN, BELL, PERMITS, EPOCH_KEY = unpack(KEYS, 1, 7)
local owner, token, verb, name, place, permits = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local found = redis.call('MGET', EPOCH_KEY, PERMITS)
if found[1] ~= EPOCH then return {'FORGOT', ARGV[2]} end
local value, known, held, again
if verb == 'A' or verb == 'R' then
  value, known = redis.call('GET', LOCK), redis.call('GET', FENCE)
  held = value == owner
  -- The same request again has the same answer, whatever has changed since. Nothing up to the floor
  -- counts: see `View::is_granted_to`.
  again = verb == 'A' and held and known == ARGV[2] and FLOOR < token
end
if (verb == 'A' or verb == 'W') and found[2] and found[2] ~= permits and not again then
  return {'PERMITS', ARGV[2], math.min(math.max(tonumber(found[2]) or 0, 0), 4294967295)}
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function digits(number) return string.format('%.0f', number) end

local function leave(waiter)
  -- @leave(waiter)
end

-- The number of a permit that is free. None beyond the number on record: the client may have another.
local on_record = tonumber(found[2] or 2048)
if verb == 'L' and ARGV[8] then on_record = tonumber(permits) end
local function free_permit()
  for at = 8, #KEYS do
    local number = (ARGV[7] + at - 8) % (tonumber(permits) or 2048)
    if number < on_record and redis.call('EXISTS', KEYS[at]) == 0 then return number end
  end
end

-- Notifies the first in line if a permit is free.
local function announce()
  for _ = 1, @served_at_once() do
    local first = redis.call('ZRANGE', LINE, '0', '0')[1]
    local permit = first and free_permit()
    if not permit then return end
    local bell = string.match(redis.call('HGET', BELL, first) or '', ':(.*)$') or ''
    local message = 'F' .. string.sub(first, 1, 16) .. permit .. ' ' .. name
    local channel = 'leasehold:bell:' .. string.sub(bell, 1, 16)
    if bell == '' or redis.pcall('PUBLISH', channel, message) ~= 0 then return end
    -- No subscriber: the waiter is gone.
    leave(first)
  end
end

local silent = redis.call('ZRANGEBYSCORE', SEEN, '-inf', '(' .. digits(now - DEAD), 'LIMIT', '0', '100')
for _, waiter in ipairs(silent) do leave(waiter) end

if verb == 'L' then
  leave(owner)
  if ARGV[8] then redis.call('SET', PERMITS, permits, 'PX', FENCE_MS) end
  announce()
  return {'RELEASED', ARGV[2], 0}
end

if verb == 'W' then
  local ahead = token > now + S
  if ahead or token <= FLOOR then
    leave(owner)
    announce()
    return {ahead and 'AHEAD' or 'STALE', ARGV[2], FLOOR, now}
  end
  redis.call('ZADD', SEEN, digits(now), owner)
  redis.call('ZADD', LINE, ARGV[2], owner)
  redis.call('HSET', BELL, owner, '0:' .. ARGV[8])
  redis.call('PEXPIRE', PERMITS, FENCE_MS)
  -- @refresh_line
  local before, soonest, value = redis.call('ZRANK', LINE, owner), -1, ''
  if before == 0 then
    local permit = free_permit()
    if permit then return {'FREE', ARGV[2], permit} end
    local next_free
    for at = 8, #KEYS do
      local left = redis.call('PTTL', KEYS[at])
      if left >= 0 and (soonest < 0 or left < soonest) then soonest, next_free = left, KEYS[at] end
    end
    value = redis.call('GET', next_free or KEYS[8]) or ''
  end
  -- No holder of a permit is taken for the first in line, whose ticket is above the fence.
  local fence = math.max(FLOOR, tonumber(string.match(value, '^%w+:(%d+):%d+@') or 0))
  return {'HELD', ARGV[2], fence, now, soonest, value, before}
end

local fence = math.max(known and tonumber(@highest(known)) or now - F, FLOOR)

if verb == 'R' then
  redis.call('PEXPIRE', PERMITS, FENCE_MS)
  -- The same request again: the name is kept already.
  if ARGV[8] and value == ARGV[9] then
    announce()
    return {'RELEASED', ARGV[2], 1}
  end
  -- The ticket stays: this may be the release of a request that failed.
  local kept_ms = ARGV[8] or '0'
  -- @fence_ttl(kept_ms)
  if held and ARGV[8] then
    redis.call('SET', LOCK, ARGV[9], 'PX', ARGV[8])
  elseif held then
    redis.call('DEL', LOCK)
  end
  -- Never raise the fence under a live holder.
  if (held or not value) and fence <= token and token <= now + S then
    redis.call('SET', FENCE, digits(token + 1), 'PX', keep_ms)
  elseif held and ARGV[8] then
    -- The fence must not end before the permit is free.
    redis.call('PEXPIRE', FENCE, keep_ms)
  end
  announce()
  return {'RELEASED', ARGV[2], held and 1 or 0}
end

-- While there is a line, only the first in line can acquire a permit.
local first = redis.call('ZRANGE', LINE, '0', '0')[1]
if first and first ~= place and not again then return {'HELD', ARGV[2], FLOOR, now, tonumber(TURN_MS), first} end
if value and not again and (not held or fence > token) then
  -- A client that guessed is told which permit is free.
  local permit = place == '' and free_permit()
  if permit then return {'FREE', ARGV[2], permit} end
  return {'HELD', ARGV[2], fence, now, redis.call('PTTL', LOCK), value}
end
if not again and token > now + S then return {'AHEAD', ARGV[2], fence, now} end
if not again and fence >= token then return {'STALE', ARGV[2], fence, now} end
-- @fence_ttl(ARGV[8])
-- Nothing that a holder sends shortens its lock.
local ttl = tonumber(ARGV[8])
if held then ttl = math.max(ttl, redis.call('PTTL', LOCK)) end
redis.call('SET', FENCE, ARGV[2], 'PX', keep_ms)
redis.call('SET', LOCK, owner, 'PX', digits(ttl))
redis.call('SET', PERMITS, permits, 'PX', FENCE_MS)
if place ~= '' then
  leave(place)
  announce()
end
return {'GRANTED', ARGV[2], now}
