-- What scripts have in common for all but the common cases: making these functions costs as much as
-- the rest of an acquire, so each script does without them as long as it can. Needs @keys.

-- '%.0f': a token has more digits than '..' and tostring() keep.
local function digits(token) return string.format('%.0f', token) end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A fence ends in '+' while there are waiters, so that a script that only reads the fence sees it.
local function has_line(known) return known and string.byte(known, -1) == 43 end
local function is_fence(known, token) return known == token or known == token .. '+' end
local function effective(known, now)
  return math.max(known and tonumber(string.match(known, '^%d+')) or now - F, FLOOR)
end

-- Records when a token was granted, for clients that inspect the lock.
local function note_grant(token, now)
  redis.call('SET', SINCE, token .. ':' .. digits(now), 'PX', FENCE_MS)
end

local function leave(owner)
  -- @leave(owner)
end

local function look_up(owner)
  local entry = redis.call('HGET', BELL, owner) or ''
  local since, bell = string.match(entry, '^(%d+):(.*)$')
  return since, bell
end

-- Notifies a waiter: 'G', the lock was granted to it; 'T', it is its turn to send ACQUIRE; 'A', it
-- should send WAIT again. Returns false if no client is subscribed. The name and the beginning of the
-- owner value say which claim is meant. A grant also carries its proof.
local function notify(owner, bell, news)
  if not bell or bell == '' then return true end
  local proof = news == 'G' and string.sub(bell, 17) or ''
  local message = news .. string.sub(owner, 1, 16) .. proof .. ' ' .. LOCK
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
local function serve(value, known, now, asking, waits)
  local fence, owner = effective(known, now), value ~= TURN and value
  if owner and not waits then return owner, known end
  local silent = redis.call('ZRANGEBYSCORE', SEEN, '-inf', '(' .. digits(now - DEAD), 'LIMIT', '0', '100')
  for _, waiter in ipairs(silent) do leave(waiter) end
  while true do
    local first = redis.call('ZRANGE', LINE, '0', '0', 'WITHSCORES')
    local ticket = tonumber(first[2])
    first = first[1]
    if not first then
      if has_line(known) then
        known = string.sub(known, 1, -2)
        redis.call('SET', FENCE, known, 'KEEPTTL')
      end
      if value == TURN then redis.call('DEL', LOCK) end
      return owner, known
    elseif ticket <= fence then
      -- Overtaken: its owner takes a new ticket.
      local _, bell = look_up(first)
      notify(first, bell, 'A')
      leave(first)
    elseif owner then
      return owner, known
    else
      local since, bell = look_up(first)
      local order_known = since and since + ORDER_KNOWN_AFTER <= now
      -- NX: what is no string reads as nothing in a MGET, and must not be overwritten.
      local time, written = TURN_MS, TURN
      if order_known then time, written = HANDED_OVER_MS, first end
      if not redis.call('SET', LOCK, written, 'PX', time, value and 'XX' or 'NX') then
        return owner, known
      end
      value = written
      -- The fence first, then the message: 'G' is a vote, and the server may refuse to write.
      local raised = order_known and digits(ticket) .. '+' or known
      if order_known then
        redis.call('SET', FENCE, raised, 'PX', FENCE_MS)
        note_grant(digits(ticket), now)
      end
      if first == asking or notify(first, bell, order_known and 'G' or 'T') then
        if not order_known then return false, known, first end
        leave(first)
        return first, raised
      end
      -- No subscriber: the waiter is gone, and no client has seen this grant.
      if order_known then
        redis.call('DEL', LOCK)
        redis.call('SET', FENCE, known, 'PX', FENCE_MS)
        value = false
      end
      leave(first)
    end
  end
end
