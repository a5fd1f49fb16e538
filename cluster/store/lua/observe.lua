-- KEYS: meta, lease, observations, index.  ARGV: seen incarnation, seen revision, epoch, then
-- (keep|forget, name, value) of each.

local gone = lost() or fenced(KEYS[2], ARGV[3])
if gone then return gone end
for i = 4, #ARGV, 3 do
  local name = ARGV[i + 1]
  if ARGV[i] == 'keep' then
    redis.call('HSET', KEYS[3], name, ARGV[i + 2])
    redis.call('ZADD', KEYS[4], 0, name)
  else
    redis.call('HDEL', KEYS[3], name)
    redis.call('ZREM', KEYS[4], name)
  end
end
return {'ok'}
