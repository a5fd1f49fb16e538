-- KEYS: meta, lease, changes.  ARGV: seen incarnation, seen revision, holder, address,
-- milliseconds of the lease, changes kept.

local gone = lost()
if gone then return gone end
local epoch, holder, address = lease_of(KEYS[2])
if epoch and holder ~= ARGV[3] then
  return {'ok', epoch, holder, address, number(redis.call('PTTL', KEYS[2]))}
end
if not epoch then
  local revision = redis.call('HINCRBY', meta, 'revision', 1)
  add_change(KEYS[3], revision, ARGV[6], {'request', '', 'actor', ARGV[3]})
  epoch = number(revision)
end
redis.call('SET', KEYS[2], epoch .. ' ' .. ARGV[3] .. ' ' .. ARGV[4], 'PX', ARGV[5])
return {'ok', epoch, ARGV[3], ARGV[4], ARGV[5]}
