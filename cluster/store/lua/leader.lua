-- KEYS: meta, lease.  ARGV: seen incarnation, seen revision.

local gone = lost()
if gone then return gone end
local epoch, holder, address = lease_of(KEYS[2])
if not epoch then return {'none'} end
return {'ok', epoch, holder, address, number(redis.call('PTTL', KEYS[2]))}
