-- '%.0f': a token has more digits than '..' and tostring() keep.
local function digits(token) return string.format('%.0f', token) end

-- How long to keep a fence that is written now, for a lock of so many ms: F + S and some
-- hours, in which the TTL of nearly every lock is contained; see `Constants::fence_ttl`.
local function fence_ms(ttl_ms)
  if #ttl_ms < 8 then return FENCE_MS end
  return digits(FENCE_MS + ttl_ms)
end

