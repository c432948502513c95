-- What wait.lua does for shared claims. `share` is when the claim expires as a reader, if it is one.
-- @= place(token) string.format('%.0f', $token + @behind())
-- @= need(known) ($known and @effective_written($known, effective($known, now)) or effective(nil, now))

-- @@ find_share
share = value and @is_marker(value) and tonumber(redis.call('ZSCORE', READERS, ARGV[1]) or '0')
if share and share <= math.floor(now / 1000) then share = nil end

-- @@ granted_before
if share and fence < token then
  local now_ms, line, marked, written = math.floor(now / 1000), has_line(known), true, fence
  if share - now_ms < tonumber(HANDED_OVER_MS) then
    fence = effective(known, now)
    -- @share(ARGV[1], token, HANDED_OVER_MS)
  end
  return {'GRANTED', ARGV[2], now}
end

-- @@ granted_now
if owner and @is_marker(owner) then
  if not place and redis.call('ZSCORE', READERS, ARGV[1]) then return {'GRANTED', ARGV[2], now} end
  -- Readers have the lock, and another waiter is before this one.
  first = redis.call('ZRANGE', LINE, '0', '0')[1]
end
