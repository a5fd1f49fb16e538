-- KEYS: meta, scratch.  ARGV: incarnation for a store that is empty, '0', schema.

-- A script is not undone when a command in it is denied: try every writing command first.
local scratch = KEYS[2]
redis.call('SET', scratch, '', 'PX', 1000)
redis.call('DEL', scratch)
redis.call('HSET', scratch, 'a', '1')
redis.call('HINCRBY', scratch, 'a', 1)
redis.call('HDEL', scratch, 'a')
redis.call('ZADD', scratch, 0, 'a')
redis.call('ZREM', scratch, 'a')
redis.call('SADD', scratch, 'a')
redis.call('DEL', scratch)
redis.call('XADD', scratch, 'MAXLEN', 1, '1-0', 'a', '1')
redis.call('DEL', scratch)

if redis.call('EXISTS', meta) == 0 then
  redis.call('HSET', meta, 'schema', ARGV[3], 'incarnation', ARGV[1], 'revision', 0,
    'created_unix_ms', now_ms)
end
local have = redis.call('HMGET', meta, 'schema', 'incarnation', 'revision', 'retired')
return {'ok', have[1] or '', have[2] or '', have[3] or '0', have[4] or ''}
