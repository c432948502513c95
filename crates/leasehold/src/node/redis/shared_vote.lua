-- The vote on a request of shared.lua, apart from the line. `first` is another claim that is first in
-- line, if there is one. Sets `reply`, and changes `value` and `known`.
local now_ms = math.floor(now / 1000)
local fence = math.max(known and tonumber(@highest(known)) or now - F, FLOOR)
local written = known and @effective_written(known, fence) or fence
local marked = value and @is_marker(value)
-- When it expires as a reader, if it is one. Readers count only while the lock is a marker.
local share = marked and tonumber(redis.call('ZSCORE', READERS, owner) or '0')
if share and share <= now_ms then share = nil end
if verb == 'R' and value == owner then
  -- A client of a version without readers has handed it the lock alone.
  redis.call('DEL', LOCK)
  value, reply = false, {'RELEASED', ARGV[2], 1}
elseif verb == 'R' then
  reply = {'RELEASED', ARGV[2], share and 1 or 0}
  if share then
    redis.call('ZREM', READERS, owner)
    if ARGV[4] then
      local kept = math.max(now_ms + ARGV[4], tonumber(redis.call('ZSCORE', READERS, ARGV[5]) or '0'))
      redis.call('ZADD', READERS, string.format('%.0f', kept), ARGV[5])
    end
    redis.call('ZREMRANGEBYSCORE', READERS, '-inf', now_ms)
    if redis.call('ZCARD', READERS) == 0 then
      redis.call('DEL', LOCK)
      value = false
    else
      -- @mark_longest
    end
  end
else
  -- The lock of a claim that excludes this one; and the token of the exclusive claim that this one
  -- replaces, which counts as a writer's wherever it was granted.
  local other = value and value ~= TURN and not marked and value ~= ARGV[5] and value
  local need = written
  if ARGV[5] then need = math.max(written, tonumber(string.match(ARGV[5], '^:(%d+):', 41))) end
  if verb == 'A' and share and written < token then
    reply = nil
  elseif verb == 'X' and FLOOR >= token then
    reply = {'LOST', ARGV[2], need}
  elseif other then
    reply = {'HELD', ARGV[2], written, now, redis.call('PTTL', LOCK), other}
  elseif verb == 'A' and first and not share then
    reply = {'HELD', ARGV[2], written, now, tonumber(TURN_MS), first}
  elseif verb == 'X' and need >= token then
    reply = {'LOST', ARGV[2], need}
  elseif token > now + S and not (verb == 'X' and share) then
    reply = {'AHEAD', ARGV[2], written, now}
  elseif need >= token then
    reply = {'STALE', ARGV[2], written, now}
  end
  if not reply then
    local ms = tonumber(ARGV[4])
    if share and share - now_ms > ms then ms = share - now_ms end
    written = need
    -- @share(owner, token, ms)
    reply = {'GRANTED', ARGV[2], now}
  end
end
