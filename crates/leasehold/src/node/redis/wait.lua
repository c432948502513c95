-- WAIT: joins the line of the lock, or says that the waiter is still there.
-- Restates `rules::wait` and `record::vote`. The constants in capitals stand before this text; see
-- scripts.rs. Lines that begin with `-- @` are replaced; see fragments.lua. There are two of these
-- scripts, for exclusive and for shared claims, which differ in what wait_exclusive.lua and
-- wait_shared.lua say.
--
-- KEYS as in acquire.lua.
-- ARGV[1] owner value   ARGV[2] token   ARGV[3] the channel and the proof of a grant, or empty
-- ARGV[4] '0' if no other node votes on the claim
--
-- Replies:
--   {'GRANTED', token, now}                          the lock was handed over to it
--   {'TURN', token, now}                             it is its turn: it should send ACQUIRE
--   {'HELD', token, fence, now, pttl, value, place}  this many waiters are before it
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
-- @keys
local call, owner, token = redis.call, ARGV[1], ARGV[2]
local found = call('MGET', EPOCH_KEY, FENCE, LOCK)
if found[1] ~= EPOCH then return {'FORGOT', token} end
local known, holder, joins = found[2], found[3], nil

-- The common case, at less than half of the cost: another claim has the lock, and other waiters are
-- before this one. All that is to be done is to enter it there, or to note that it lives. Numbers of
-- 16 digits compare as text, as in hand_over.lua.
if holder and holder ~= owner and holder ~= TURN and known and #known == 17
  and @has_line(known) and #token == 16 and known < token and FLOOR16 < token then
  -- @clock
  if (token <= now or tonumber(token) <= now + S) and string.find(known, '^%d+%+$') then
    joins = call('ZADD', SEEN, now, owner) == 1
    local entry
    if joins then
      entry = (ARGV[4] or now) .. ':' .. ARGV[3]
      call('ZADD', LINE, @place(token), owner)
      call('HSET', BELL, owner, entry)
    else
      entry = call('HGET', BELL, owner)
    end
    -- @refresh_line
    local place = call('ZRANK', LINE, owner)
    local behind = place and place > 0 and entry and string.match(entry, ':(.*)$') == ARGV[3]
    if behind and place < 100 then
      -- Waiters further back leave it to the first hundred to look for the silent, and for a first
      -- whose ticket was overtaken.
      -- @first_in_line
      -- @find_silent
      behind = ticket and known < ticket and FLOOR16 < ticket and not silent
    end
    if behind then
      local fence = string.sub(known, 1, 16)
      if fence < FLOOR16 then fence = FLOOR16 end
      return {'HELD', token, fence, now, call('PTTL', LOCK), holder, place}
    end
  end
end

-- @prelude
local now, value = clock(), redis.call('GET', LOCK)
local fence, first = @need(known), nil
owner, token = value ~= TURN and value, tonumber(token)
local ahead, share = token > now + S, nil
-- @find_share
if ahead or fence >= token or share then
  if has_line(known) then
    leave(ARGV[1])
    owner, known = serve(value, known, now, ARGV[1], true)
    fence = @need(known)
  end
  -- It waits for other nodes, and keeps this one meanwhile. Nothing is shortened.
  -- @granted_before
  return {ahead and 'AHEAD' or 'STALE', ARGV[2], fence, now}
end
if joins == nil then redis.call('ZADD', SEEN, now, ARGV[1]) end
if not joins then joins = redis.call('ZADD', LINE, @place(ARGV[2]), ARGV[1]) == 1 end
local since, bell
if not joins then since, bell = look_up(ARGV[1]) end
if bell ~= ARGV[3] then
  local entry = (since or ARGV[4] or digits(now)) .. ':' .. ARGV[3]
  redis.call('HSET', BELL, ARGV[1], entry)
end
if not known then
  known = @with_line(digits(effective(known, now)))
  redis.call('SET', FENCE, known, 'PX', FENCE_MS)
elseif not has_line(known) then
  known = @with_line(known)
  redis.call('SET', FENCE, known, 'KEEPTTL')
end
-- @refresh_line
owner, known, first = serve(value, known, now, ARGV[1], true)
local place = redis.call('ZRANK', LINE, ARGV[1])
-- @granted_now
if first == ARGV[1] then return {'TURN', ARGV[2], now} end
fence = @need(known)
if fence >= token then
  -- The lock was just handed to a waiter whose ticket is not below this one: this ticket cannot win
  -- any more, and does not stay in line.
  serve(owner, known, now, ARGV[1], true)
  return {'STALE', ARGV[2], fence, now}
end
local pttl = first and tonumber(TURN_MS) or redis.call('PTTL', LOCK)
return {'HELD', ARGV[2], fence, now, pttl, first or owner, place}
