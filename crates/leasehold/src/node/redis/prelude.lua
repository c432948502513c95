-- What scripts have in common, for the cases that are not the common one: making these functions
-- costs as much as the rest of an acquire, so each script stands in for them as long as it can.

-- '%.0f': a token has more digits than '..' and tostring() keep.
local function digits(token) return string.format('%.0f', token) end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A fence ends in '+' while somebody stands in line: so who only looks at the fence sees it.
local function has_line(known) return known and string.byte(known, -1) == 43 end
local function is_fence(known, token) return known == token or known == token .. '+' end
local function effective(known, now)
  return math.max(known and tonumber(string.match(known, '^%d+')) or now - F, FLOOR)
end

-- The line of those who wait for a lock, beside its fence (whose key it is named after):
--   line  by ticket: their owner values      seen  the same by when they asked last
--   bell  since when they stand there, ':', 16 digits of the channel over which to tell them, and 16
--         that prove a grant; neither if they hear nothing and only ask
local function of_line(kind, fence_key) return 'leasehold:' .. kind .. string.sub(fence_key, 16) end

-- Records when a token was granted, for those who inspect the lock.
local function note_grant(fence_key, token, now)
  redis.call('SET', of_line('since', fence_key), token .. ':' .. digits(now), 'PX', FENCE_MS)
end

local function leave(fence_key, owner)
  redis.call('ZREM', of_line('line', fence_key), owner)
  redis.call('ZREM', of_line('seen', fence_key), owner)
  redis.call('HDEL', of_line('bell', fence_key), owner)
end

local function look_up(fence_key, owner)
  local entry = redis.call('HGET', of_line('bell', fence_key), owner) or ''
  local since, bell = string.match(entry, '^(%d+):(.*)$')
  return since, bell
end

-- Notifies a waiter: 'G', the lock was granted to it; 'T', it is its turn to send ACQUIRE; 'A', it
-- should send WAIT again. Returns false if no client is subscribed. The name and the beginning of the
-- owner value say which claim is meant. A grant also carries its proof.
local function tell(lock_key, owner, bell, news)
  if not bell or bell == '' then return true end
  local proof = news == 'G' and string.sub(bell, 17) or ''
  local message = news .. string.sub(owner, 1, 16) .. proof .. ' ' .. lock_key
  return redis.pcall('PUBLISH', 'leasehold:bell:' .. string.sub(bell, 1, 16), message) ~= 0
end

-- Hands a free lock to the first in line and notifies it, unless that is `asking`, which gets an
-- answer anyway. While the lock is granted, only a WAIT (`waits`) looks for waiters that are silent or
-- were overtaken. Restates `serve` of record.rs.
--
-- `value` is what the lock's key holds. Returns, from now on: the owner value of the lock, if it is
-- granted; the fence; and the first in line, if the lock is free and only that waiter can acquire it.
-- Then the key holds TURN, which keeps other libraries (`SET … NX`) from acquiring the lock and is no
-- lock to any of these scripts.
local function serve(lock_key, fence_key, value, known, now, asking, waits)
  local line, fence = of_line('line', fence_key), effective(known, now)
  local owner = value ~= TURN and value
  if owner and not waits then return owner, known end
  local dead = redis.call('ZRANGEBYSCORE', of_line('seen', fence_key), '-inf',
    '(' .. digits(now - DEAD), 'LIMIT', '0', '100')
  for _, one in ipairs(dead) do leave(fence_key, one) end
  while true do
    local first = redis.call('ZRANGE', line, '0', '0', 'WITHSCORES')
    local ticket = tonumber(first[2])
    first = first[1]
    if not first then
      -- Nobody stands in line any more.
      if has_line(known) then
        known = string.sub(known, 1, -2)
        redis.call('SET', fence_key, known, 'KEEPTTL')
      end
      if value == TURN then redis.call('DEL', lock_key) end
      return owner, known
    elseif ticket <= fence then
      local _, bell = look_up(fence_key, first)
      tell(lock_key, first, bell, 'A')
      leave(fence_key, first)
    elseif owner then
      return owner, known
    else
      local since, bell = look_up(fence_key, first)
      local settled = since and since + SETTLED <= now
      -- NX: what is no string reads as nothing in a MGET, and must not be overwritten.
      local time = settled and HANDED_OVER_MS or TURN_MS
      local written = settled and first or TURN
      if not redis.call('SET', lock_key, written, 'PX', time, value and 'XX' or 'NX') then
        return owner, known
      end
      value = written
      -- The fence first, then the message: 'G' is a vote, and the server may refuse to write.
      local raised = settled and digits(ticket) .. '+' or known
      if settled then
        redis.call('SET', fence_key, raised, 'PX', FENCE_MS)
        note_grant(fence_key, digits(ticket), now)
      end
      if first == asking or tell(lock_key, first, bell, settled and 'G' or 'T') then
        if not settled then return false, known, first end
        leave(fence_key, first)
        return first, raised
      end
      -- No subscriber: the waiter is gone, and no client has seen this grant.
      if settled then
        redis.call('DEL', lock_key)
        redis.call('SET', fence_key, known, 'PX', FENCE_MS)
        value = false
      end
      leave(fence_key, first)
    end
  end
end
