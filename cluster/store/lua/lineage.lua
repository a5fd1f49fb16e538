-- KEYS: meta.  ARGV: seen incarnation, seen revision.

local gone = lost()
if gone then return gone end
local have = redis.call('HMGET', meta, 'incarnation', 'revision', 'retired')
return {'ok', have[1], have[2], have[3] or ''}
