-- Pieces that the scripts share. A line `-- @name(arguments)` in a script is replaced by the piece of
-- that name, with `$parameter` replaced by the argument; see template.rs. A function would cost the
-- server as much as an empty script each time it is made, text costs nothing.
--
-- The keys of a name, after a line `-- @keys` (`KeyForm` of scripts.rs):
-- LOCK, FENCE
-- LINE        the owner values of the waiters by ticket
-- SEEN        the same by when they sent WAIT last
-- BELL        for each waiter: since when it has stood there (0 if no other node votes on its claim),
--             ':', 16 digits of the channel on which to notify it, and 16 that prove a grant (neither
--             if it gets no notifications)
-- SINCE       the token granted last, and when
-- EPOCH_KEY

-- @@ fence_ttl(ttl)
-- How long to keep a fence that is written now: F + S and some hours, in which the TTL of
-- nearly every lock is contained; see `Constants::fence_ttl`.
local keep_ms = #$ttl < 8 and FENCE_MS or string.format('%.0f', FENCE_MS + $ttl)

-- @@ write_fence(key, known, token, mark, keep_ms)
-- The time to live is renewed when the first 7 digits change, every 1000 s; it is longer than F by
-- hours. Of the commands that leave it as it is, SETRANGE costs least.
if $keep_ms == FENCE_MS and string.sub($known, 1, 7) == string.sub($token, 1, 7) then
  redis.call('SETRANGE', $key, '0', $token)
else
  redis.call('SET', $key, $token .. $mark, 'PX', $keep_ms)
end

-- @@ acquire_free(lock, fence, known, owner, token, ttl, keep_ms)
-- The common case of ACQUIRE, with as few and as cheap calls as can be. Neither the epoch nor the
-- clock needs to be looked at: a fence that is there has not been forgotten, and was above
-- the floor when it was written; a token within the cap once is within it ever after.
-- Numbers of 16 digits (µs, until the year 2286) compare as text. A fence with a line behind it has
-- 17 characters.
if $known and #$known == 16 and $known < $token and FLOOR16 < $token
  and redis.call('SET', $lock, $owner, 'NX', 'PX', $ttl) then
  -- @write_fence($fence, $known, $token, '', $keep_ms)
  granted = true
end

-- @@ extend_held(lock, fence, value, known, owner, token, ttl, keep_ms)
-- The common case of EXTEND: the lock is still there, and so is its fence. An extend never shortens.
if $value == $owner and ($known == $token or $known == $token .. '+') and FLOOR16 < $token then
  if redis.call('PTTL', $lock) < tonumber($ttl) then
    redis.call('PEXPIRE', $lock, $ttl)
    redis.call('PEXPIRE', $fence, $keep_ms)
  end
  extended = true
end

-- @@ clock
-- The server's clock: `now` in µs as 16 digits, and its parts.
local time = redis.call('TIME')
local seconds, us = time[1], string.sub('000000', #time[2] + 1) .. time[2]
local now = seconds .. us

-- @@ leave(owner)
redis.call('ZREM', LINE, $owner)
redis.call('ZREM', SEEN, $owner)
redis.call('HDEL', BELL, $owner)

-- @@ refresh_line
-- A third of the time is over: all three keys are refreshed together, so one of them tells for all.
if redis.call('PTTL', LINE) < REFRESH_MS then
  redis.call('PEXPIRE', LINE, KEPT_MS)
  redis.call('PEXPIRE', SEEN, KEPT_MS)
  redis.call('PEXPIRE', BELL, KEPT_MS)
end

-- @@ first_in_line
-- The first in line, and its ticket if that has 16 digits: an owner value contains its ticket.
local first = redis.call('ZRANGE', LINE, '0', '0')[1]
local _, last = string.find(first or '', '^:%d+:', 41)
local ticket = last == 58 and string.sub(first, 42, 57)

-- @@ find_silent
-- A waiter that has been silent for too long, if there is one.
local silent = redis.call('ZRANGEBYSCORE', SEEN, '-inf', '(' .. (seconds - DEAD_S) .. us, 'LIMIT', '0', '1')[1]
