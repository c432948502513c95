-- The handshake of a connection: learns this server's epoch, and begins a new one if the
-- server has lost its memory (the record is missing, or an earlier run wrote it).
--
-- KEYS[1] epoch
-- ARGV[1] the constants that all clients must agree on, as text without ':'
--
-- The record is 'run_id:constants:T', T being the server's clock in µs when the epoch
-- began. If the clock has gone back since an earlier run's epoch began, that T is kept: its
-- floor still protects the names that have had no lease since. Replies:
--   {'EPOCH', record, run_id, uptime in s, now, command}
--        command: the server's own compare-and-delete, DELIFEQ (Valkey) or DELEX; or empty
--   {'DIFFERS', constants}     other clients use other constants
local info = redis.call('INFO', 'server')
local run_id = string.match(info, 'run_id:(%w+)')
-- Not a number if the clock was set back: then it has been up for no time at all.
local uptime = string.match(info, 'uptime_in_seconds:(%d+)') or '0'
local function version(of)
  local major, minor = string.match(info, of .. '_version:(%d+)%.(%d+)')
  return major and major * 100 + minor
end
local command = ''
local valkey, redis_version = version('valkey'), version('redis')
if valkey then
  if valkey >= 900 then command = 'DELIFEQ' end
elseif redis_version and redis_version >= 804 then
  command = 'DELEX'
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local began, record = now, redis.call('GET', KEYS[1])
if record then
  local run, constants, earlier = string.match(record, '^(%w+):([^:]*):(%d+)$')
  if run == run_id and constants ~= ARGV[1] then return {'DIFFERS', constants} end
  if run == run_id then return {'EPOCH', record, run_id, uptime, now, command} end
  if run and tonumber(earlier) > tonumber(now) then began = earlier end
end
record = run_id .. ':' .. ARGV[1] .. ':' .. began
redis.call('SET', KEYS[1], record)
return {'EPOCH', record, run_id, uptime, now, command}
