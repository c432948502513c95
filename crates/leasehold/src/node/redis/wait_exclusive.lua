-- What wait.lua does for exclusive claims.
-- @= place(token) $token
-- @= need(known) effective($known, now)

-- @@ find_share

-- @@ granted_before
if owner == ARGV[1] and fence == token and FLOOR < token and @is_fence(known, ARGV[2]) then
  if redis.call('PTTL', LOCK) < tonumber(HANDED_OVER_MS) then
    redis.call('PEXPIRE', LOCK, HANDED_OVER_MS)
  end
  return {'GRANTED', ARGV[2], now}
end

-- @@ granted_now
if owner == ARGV[1] then return {'GRANTED', ARGV[2], now} end
