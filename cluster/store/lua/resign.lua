-- KEYS: meta, lease.  ARGV: seen incarnation, seen revision, holder.

local gone = lost()
if gone then return gone end
local _, holder = lease_of(KEYS[2])
if holder == ARGV[3] then redis.call('DEL', KEYS[2]) end
return {'ok'}
