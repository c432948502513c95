-- The handshake of a connection: learns this server's epoch, and begins a new one if the server
-- has lost its memory (the record is missing, or was written under another identity).
--
-- KEYS[1] epoch
-- ARGV[1] the constants that all clients must agree on, as text without ':'
-- ARGV[2] the identity of this server's memory, as text without ':'; see identity.rs
-- ARGV[3] ':fresh' if this run of the server had nothing to forget when it began, else ''
-- ARGV[4] present if a new epoch begins in any case: by how many µs the earlier S is larger
--
-- The record is 'identity:constants:T' or 'identity:constants:T:fresh', T being the server's clock in
-- µs when the epoch began. No floor (T + S) is below that of the earlier epoch, which still protects
-- the names that have had no lease since: if the clock has gone back, the earlier T is kept. Replies:
--   {'EPOCH', record, now}
--   {'DIFFERS', constants}     other clients use other constants
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local began, record = now, redis.call('GET', KEYS[1])
if record then
  local known, constants, earlier, fresh =
    string.match(record, '^([%w.]+):([^:]*):(%d+)(:?%l*)$')
  -- The same, or without the promotion that the server no longer mentions: restates
  -- `Identity::continues`.
  if known and not ARGV[4] and string.sub(known .. '.', 1, #ARGV[2] + 1) == ARGV[2] .. '.' then
    if constants ~= ARGV[1] then return {'DIFFERS', constants} end
    if ARGV[3] ~= '' and fresh == '' then
      record = record .. ARGV[3]
      redis.call('SET', KEYS[1], record)
    end
    return {'EPOCH', record, now}
  end
  earlier = known and earlier + (ARGV[4] or 0)
  if known and earlier > tonumber(now) then began = string.format('%.0f', earlier) end
end
record = ARGV[2] .. ':' .. ARGV[1] .. ':' .. began .. ARGV[3]
redis.call('SET', KEYS[1], record)
return {'EPOCH', record, now}
