-- ACQUIRE, EXTEND and RELEASE of a shared claim: a reader.
-- Restates `rules::shared` and `record::vote`. The constants in capitals stand before this text; see
-- scripts.rs. Lines that begin with `-- @` are replaced; see fragments.lua.
--
-- KEYS as in acquire.lua.
-- ARGV[1] owner value   ARGV[2] token
-- ARGV[3] 'A': ACQUIRE, 'X': EXTEND, 'R': RELEASE
-- ARGV[4] ttl in ms; of a RELEASE how long to keep the name taken, if it is to be kept
-- ARGV[5] of an EXTEND, the owner value of the exclusive claim that this one replaces; of a RELEASE, the
--         value that is kept
--
-- Replies:
--   {'GRANTED', token, now}                          it is a reader
--   {'HELD', token, fence, now, pttl, value}         another owner has the lock, or is first in line
--   {'AHEAD' | 'STALE', token, fence, now}           another token is needed
--   {'LOST', token, fence}                           a newer writer was granted the lock here
--   {'RELEASED', token, 1 or 0}                      whether it was a reader here
--   {'FORGOT', token}                                another epoch: shake hands again
--   -WRONGTYPE                                       the key holds no lock
-- @keys
local owner, token, verb = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local found = redis.call('MGET', EPOCH_KEY, FENCE)
if found[1] ~= EPOCH then return {'FORGOT', ARGV[2]} end
local value, known, first = redis.call('GET', LOCK), found[2], nil
local line, reply = known and @has_line(known), nil
if not line then
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  -- @shared_vote
  return reply
end

-- @prelude
local now = clock()
if verb == 'R' then leave(owner) end
if verb ~= 'X' then
  -- An expired lock goes to the first in line.
  value, known, first = serve(value, known, now, owner)
  if value and @is_marker(value) then first = redis.call('ZRANGE', LINE, '0', '0')[1] end
  if first == owner then first = nil end
  line = has_line(known)
end
-- @shared_vote
if reply[1] == 'GRANTED' then leave(owner) end
-- A lock that was released goes to the first in line. So does one that a writer shares from now on, if
-- the first is a reader.
local changed = reply[1] == 'GRANTED' and (verb == 'A' or ARGV[5]) or reply[1] == 'RELEASED' and reply[3] == 1
if changed then serve(value, known, now, owner) end
return reply
