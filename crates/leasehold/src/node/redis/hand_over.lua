-- The common case of `serve` of prelude.lua, at less than half of its cost: `known` says that there is
-- a line; no waiter is silent; and the first can be granted the lock, which the caller had until now,
-- and is notified. Returns true if that was so. If not, nothing was done; or the first had no
-- subscriber, has left the line, and the lock is free.
--
-- Numbers of 16 digits compare as text. A fence of 17 characters, with its '+', is below a ticket
-- only if its number is. Needs @keys.
local function hand_over(known)
  local call, sub = redis.call, string.sub
  -- @first_in_line
  local entry = first and call('HGET', BELL, first)
  if not entry or not ticket or #known ~= 17 then return false end
  local since, bell = string.match(entry, '^(%d+):(.*)$')
  if known >= ticket or FLOOR16 >= ticket or not since then return false end
  -- @clock
  if since ~= '0' and since + ORDER_KNOWN_AFTER > now + 0 then return false end
  -- @find_silent
  if silent then return false end

  -- First what a server that is full does not refuse: after that it refuses nothing.
  -- @leave(first)
  call('SET', LOCK, first, 'PX', HANDED_OVER_MS)
  -- @write_fence(FENCE, known, ticket, '+', FENCE_MS)
  call('SET', SINCE, ticket .. ':' .. now, 'PX', FENCE_MS)
  -- Last: 'G' is a vote, and by now the lock and the fence say the same.
  if bell ~= '' then
    local message = 'G' .. sub(first, 1, 16) .. sub(bell, 17) .. ' ' .. LOCK
    if redis.pcall('PUBLISH', 'leasehold:bell:' .. sub(bell, 1, 16), message) == 0 then
      -- No subscriber: the waiter is gone, and no client has seen this grant.
      call('DEL', LOCK)
      call('SET', FENCE, known, 'PX', FENCE_MS)
      return false
    end
  end
  return true
end
