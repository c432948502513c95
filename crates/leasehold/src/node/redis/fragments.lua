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
-- READERS     the owner values of readers by when they expire, in ms. They count only while the lock
--             is a marker
-- EPOCH_KEY

-- The text of a fence: F, the highest token granted; '/' and W, the highest granted to an exclusive
-- claim, if a shared one has been granted since; and a '+' while there are waiters. The mark lets a
-- script that only reads the fence see that there is a line. These expressions are the only places that
-- know it; the fast paths also know that a fence of 16 digits without W has 16 characters, and 17 with
-- the mark, and that one with W has more.
-- @= has_line(known) string.byte($known, -1) == 43
-- @= is_fence(known, token) ($known == $token or $known == $token .. '+')
-- @= fence_text(token, line) $token .. ($line and '+' or '')
-- @= shared_fence_text(token, written, line) string.format('%.0f/%.0f', $token, $written) .. ($line and '+' or '')
-- @= with_line(token) $token .. '+'
-- @= without_line(known) string.sub($known, 1, -2)
-- @= highest(known) string.match($known, '^%d+')
-- @= highest_written(known) string.match($known, '^%d+/(%d+)')
-- The effective W: F alone means that W = F, of which `fence` is the effective one.
-- @= effective_written(known, fence) math.max(tonumber(@highest_written($known)) or $fence, FLOOR)

-- A marker, which the key of a lock holds while there are readers: `is_marker` of holder.rs. \064 is an
-- at sign. The owner value of a reader has an 's' after its token.
-- @= is_marker(value) string.find($value, '^shared:%d+:%d+\064[^:]*:')
-- @= is_shared(owner) string.find($owner, '^:%d+s:', 41)
-- @= marker_of(owner) 'shared' .. string.gsub(string.sub($owner, 41), '^(:%d+)s:', '%1:')

-- The key of a fence, where a request does not contain it: that of a name without braces.
-- A script of one name costs less so. (In a script of many, a key in the request costs less than one
-- that Lua puts together.)
-- @= fence_of(lock) 'leasehold:fence:{' .. $lock .. '}'

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
if $value == $owner and @is_fence($known, $token) and FLOOR16 < $token then
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
-- A third of the time is over. All three keys are refreshed together, so checking one is enough.
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

-- @@ share(owner, token, ms)
-- Makes a claim a reader for so many ms from now: `Write::Share`. The key of the lock must hold a string
-- or nothing. Needs now_ms; `value`, what the key holds, and whether it is `marked`; `fence` and
-- `written`, the effective F and W; `known` and `line`. Changes value, marked and known.
if marked then
  redis.call('ZREMRANGEBYSCORE', READERS, '-inf', now_ms)
else
  redis.call('DEL', READERS)
end
redis.call('ZADD', READERS, string.format('%.0f', now_ms + $ms), $owner)
value, marked = @marker_of($owner), true
-- @mark_longest
-- @fence_ttl(longest)
known = @shared_fence_text(math.max(fence, $token), written, line)
redis.call('SET', FENCE, known, 'PX', keep_ms)

-- @@ mark_longest
-- Makes the marker `value` live as long as the reader that stays longest, of which there is one.
local longest = redis.call('ZRANGE', READERS, '-1', '-1', 'WITHSCORES')[2]
longest = string.format('%.0f', longest - now_ms)
redis.call('SET', LOCK, value, 'PX', longest)
redis.call('PEXPIRE', READERS, longest)

-- @@ find_silent
-- A waiter that has been silent for too long, if there is one.
local silent = redis.call('ZRANGEBYSCORE', SEEN, '-inf', '(' .. (seconds - DEAD_S) .. us, 'LIMIT', '0', '1')[1]
