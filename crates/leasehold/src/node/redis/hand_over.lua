-- The common case of `serve` of prelude.lua, at less than half of its cost: `known` says that
-- somebody stands in line; nobody there is dead; and the first can be granted the lock, which the
-- caller had until now, and hears of it. Returns true if that was so. If not, nothing was done; or
-- the first did not hear of it, is gone from the line, and nobody has the lock.
--
-- Numbers of 16 digits compare as text. A fence of 17 characters, with its '+', is below a ticket
-- only if its number is.
local function hand_over(lock_key, fence_key, known)
  local call, sub, name = redis.call, string.sub, string.sub(fence_key, 16)
  local line, seen = 'leasehold:line' .. name, 'leasehold:seen' .. name
  local bells = 'leasehold:bell' .. name
  local first = call('ZRANGE', line, '0', '0')[1]
  local entry = first and call('HGET', bells, first)
  if not entry or #known ~= 17 then return false end
  -- An owner value tells its ticket.
  local _, last = string.find(first, '^:%d+:', 41)
  local ticket, since, bell = sub(first, 42, 57), string.match(entry, '^(%d+):(.*)$')
  if last ~= 58 or known >= ticket or FLOOR16 >= ticket or not since then return false end
  local time = call('TIME')
  local s, us = time[1], time[2]
  if since ~= '0' and since + SETTLED > s * 1000000 + us then return false end
  us = sub('000000', #us + 1) .. us
  local dead = (s - DEAD_S) .. us
  if call('ZRANGEBYSCORE', seen, '-inf', '(' .. dead, 'LIMIT', '0', '1')[1] then return false end

  -- First what a server that is full does not refuse: after that it refuses nothing.
  call('ZREM', line, first)
  call('ZREM', seen, first)
  call('HDEL', bells, first)
  call('SET', lock_key, first, 'PX', HANDED_OVER_MS)
  -- As in acquire.lua.
  if sub(known, 1, 7) == sub(ticket, 1, 7) then
    call('SETRANGE', fence_key, '0', ticket)
  else
    call('SET', fence_key, ticket .. '+', 'PX', FENCE_MS)
  end
  call('SET', 'leasehold:since' .. name, ticket .. ':' .. s .. us, 'PX', FENCE_MS)
  -- Last: 'G' is a vote, and by now the lock and the fence say the same.
  if bell ~= '' then
    local message = 'G' .. sub(first, 1, 16) .. sub(bell, 17) .. ' ' .. lock_key
    if redis.pcall('PUBLISH', 'leasehold:bell:' .. sub(bell, 1, 16), message) == 0 then
      -- No subscriber: the waiter is gone, and no client has seen this grant.
      call('DEL', lock_key)
      call('SET', fence_key, known, 'PX', FENCE_MS)
      return false
    end
  end
  return true
end
