-- KEYS: meta, request.  ARGV: seen incarnation, seen revision, fingerprint.

local gone = lost()
if gone then return gone end
local answer = redis.call('GET', KEYS[2])
if not answer then return {'none'} end
local revision, first = answer:match('^(%d+) (.*)$')
return {first == ARGV[3] and 'replayed' or 'reused', revision}
