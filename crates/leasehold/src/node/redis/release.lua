-- RELEASE: releases the lock if it is the claim's, and makes sure that a late ACQUIRE or EXTEND of the
-- same claim loses.
-- Restates `rules::release` and `record::vote`. The constants in capitals stand before this text; see
-- scripts.rs. Lines that begin with `-- @` are replaced; see fragments.lua.
--
-- KEYS as in acquire.lua.
-- ARGV[1] owner value   ARGV[2] token
-- ARGV[3] how long to keep the name taken, in ms   ARGV[4] the value it then has
--         (both only if it is to be kept)
-- ARGV[5] how many of the first in line to notify, less one (only if that value has a result)
--
-- Replies:
--   token                 it was held here, and is not any more
--   -token                it was not held here
--   {'FORGOT', token}     another epoch: shake hands again
local token = tonumber(ARGV[2])
local both = redis.call('MGET', KEYS[1], KEYS[2])
local owner, known = both[1], both[2]
local line, held = known and @has_line(known), owner == ARGV[1]
local kept_ms = ARGV[3] or '0'
-- @fence_ttl(kept_ms)

-- The same request again: the name is kept already.
if ARGV[3] and owner == ARGV[4] and token > 0 then return token end

-- The common case. The fence under a lock is the lock's token, so one more burns the next,
-- and it lives on for as long as the acquire or extend said.
if held and not line then
  if ARGV[3] then
    redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[3])
  else
    redis.call('DEL', KEYS[1])
  end
  if redis.call('INCR', KEYS[2]) < token + 1 then
    -- It had been evicted, or another program changed it.
    redis.call('SET', KEYS[2], string.format('%.0f', token + 1), 'PX', keep_ms)
  elseif ARGV[3] then
    -- The fence must not end before the name is free.
    redis.call('PEXPIRE', KEYS[2], keep_ms)
  end
  return token
end

-- @keys
-- There are waiters, and the first of them is granted the lock; or another claim has the lock, and
-- this claim, which may have waited, leaves the line.
if line and not ARGV[3] and #known == 17 then
  if held and known == @with_line(ARGV[2]) then
    -- @hand_over
    if hand_over(@with_line(string.format('%.0f', token + 1))) then return token end
  elseif owner and not held and owner ~= TURN and redis.call('GET', EPOCH_KEY) == EPOCH then
    -- @leave(ARGV[1])
    if redis.call('ZCARD', LINE) == 0 then
      redis.call('SET', FENCE, string.sub(known, 1, 16), 'KEEPTTL')
    end
    return -token
  end
end

-- @prelude
-- Never raise the fence under a live holder.
if owner and owner ~= TURN and not held and not line then return -token end
if not held and redis.call('GET', EPOCH_KEY) ~= EPOCH then return {'FORGOT', ARGV[2]} end
local now = clock()
if line then leave(ARGV[1]) end
if line and not held then
  local first
  owner, known, first = serve(owner, known, now, '')
  -- Nor above the tickets of waiters that are before this claim in line.
  if owner or first then return -token end
end
if held and ARGV[3] then
  redis.call('SET', LOCK, ARGV[4], 'PX', ARGV[3])
elseif held then
  redis.call('DEL', LOCK)
end
if effective(known, now) <= token and token <= now + S then
  known = @fence_text(digits(token + 1), line)
  redis.call('SET', FENCE, known, 'PX', keep_ms)
end
if line and not (held and ARGV[3]) then
  serve(nil, known, now, '')
elseif line and ARGV[5] then
  for _, waiter in ipairs(redis.call('ZRANGE', LINE, '0', ARGV[5])) do
    local _, bell = look_up(waiter)
    notify(waiter, bell, 'A')
  end
end
return held and token or -token
