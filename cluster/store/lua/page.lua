-- KEYS: meta, hash, index of its names.  ARGV: seen incarnation, seen revision, name to start
-- after or '', limit.

local gone = lost()
if gone then return gone end
local limit = tonumber(ARGV[4])
local from = ARGV[3] == '' and '-' or '(' .. ARGV[3]
local names = redis.call('ZRANGEBYLEX', KEYS[3], from, '+', 'LIMIT', 0, limit + 1)
local more = #names > limit
if more then names[#names] = nil end
local values = #names > 0 and redis.call('HMGET', KEYS[2], unpack(names)) or {}
return {'ok', redis.call('HGET', meta, 'revision'), more and '1' or '0', names, values}
