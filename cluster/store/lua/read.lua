-- KEYS: meta, records.  ARGV: seen incarnation, seen revision, name.

local gone = lost()
if gone then return gone end
return {'ok', redis.call('HGET', KEYS[2], ARGV[3])}
