-- What scripts have in common for all but the common cases: making these functions costs as much as
-- the rest of an acquire, so each script does without them as long as it can. Needs @keys.

-- '%.0f': a token has more digits than '..' and tostring() keep.
local function digits(token) return string.format('%.0f', token) end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function has_line(known) return known and @has_line(known) end
local function effective(known, now)
  return math.max(known and tonumber(@highest(known)) or now - F, FLOOR)
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
-- answer anyway. Goes on with the next after a reader; at most 100. While an exclusive claim has the
-- lock, only a WAIT (`waits`) looks for waiters that are silent or were overtaken. Restates `serve` of
-- record.rs.
--
-- `value` is what the lock's key holds. Returns, from now on: the owner value of the lock, if it is
-- granted, or the marker of readers; the fence; and the first in line, if the lock is free and only that
-- waiter can acquire it. Then the key holds TURN, which keeps other libraries (`SET … NX`) from acquiring
-- the lock and is no lock to any of these scripts.
local function serve(value, known, now, asking, waits)
  local owner, now_ms, line, served = value ~= TURN and value, math.floor(now / 1000), true, 0
  local marked = owner and @is_marker(owner)
  if owner and not waits and not marked then return owner, known end
  local silent = redis.call('ZRANGEBYSCORE', SEEN, '-inf', '(' .. digits(now - DEAD), 'LIMIT', '0', '100')
  for _, waiter in ipairs(silent) do leave(waiter) end
  while true do
    local first = redis.call('ZRANGE', LINE, '0', '0', 'WITHSCORES')
    local ticket = tonumber(first[2])
    first = first[1]
    local shared = first and @is_shared(first)
    local fence = effective(known, now)
    local written = @effective_written(known, fence)
    if not first then
      if has_line(known) then
        known = @without_line(known)
        redis.call('SET', FENCE, known, 'KEEPTTL')
      end
      if value == TURN then redis.call('DEL', LOCK) end
      return owner, known
    end
    if served == @served_at_once() then
      if owner then return owner, known end
      return false, known, first
    end
    served = served + 1
    -- The place of a reader is behind that of a writer with the same ticket.
    if shared then ticket = ticket - @behind() end
    if ticket <= (shared and written or fence) then
      -- Overtaken: its owner takes a new ticket.
      local _, bell = look_up(first)
      notify(first, bell, 'A')
      leave(first)
    elseif owner and not (marked and shared) then
      return owner, known
    else
      local since, bell = look_up(first)
      -- Among readers there are no votes to split.
      local grants = marked or since and since + ORDER_KNOWN_AFTER <= now
      local time, written_value = TURN_MS, TURN
      if grants then time, written_value = HANDED_OVER_MS, first end
      if grants and shared then written_value = @marker_of(first) end
      -- NX: what is no string reads as nothing in a MGET, and must not be overwritten.
      if not marked and not redis.call('SET', LOCK, written_value, 'PX', time, value and 'XX' or 'NX') then
        return owner, known
      end
      if not marked then value = written_value end
      if grants and shared then
        -- First something that a server that is full does not refuse: after that it refuses nothing,
        -- and the message, which is a vote, can come before the rest.
        leave(first)
        if first == asking or notify(first, bell, 'G') then
          -- @share(first, ticket, HANDED_OVER_MS)
          owner = value
        elseif not marked then
          redis.call('DEL', LOCK)
          value = false
        end
      else
        -- The fence first, then the message: 'G' is a vote, and the server may refuse to write.
        local raised = grants and @with_line(digits(ticket)) or known
        if grants then
          redis.call('SET', FENCE, raised, 'PX', FENCE_MS)
          note_grant(digits(ticket), now)
        end
        if first == asking or notify(first, bell, grants and 'G' or 'T') then
          if not grants then return false, known, first end
          leave(first)
          return first, raised
        end
        -- No subscriber: the waiter is gone, and no client has seen this grant.
        if grants then
          redis.call('DEL', LOCK)
          redis.call('SET', FENCE, known, 'PX', FENCE_MS)
          value = false
        end
        leave(first)
      end
    end
  end
end
