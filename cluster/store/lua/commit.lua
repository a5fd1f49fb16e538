-- KEYS: meta, lease, changes, events, request, kinds, then (records, index) of each operation.
-- ARGV: seen incarnation, seen revision, epoch, fingerprint, request id, actor, milliseconds to
-- keep the answer, changes kept, events kept, '1' if replicas are waited for, number of
-- operations, then (put|delete|check, kind, name, expected revision or '', payload) of each, then
-- the events' payloads.

local gone = lost() or fenced(KEYS[2], ARGV[3])
if gone then return gone end

local request, fingerprint = KEYS[5], ARGV[4]
local answer = redis.call('GET', request)
if answer then
  local revision, first = answer:match('^(%d+) (.*)$')
  if first ~= fingerprint then return {'reused', revision} end
  -- WAIT counts replicas from this connection's own last write, so there must be one.
  if ARGV[10] == '1' then redis.call('HINCRBY', meta, 'replays', 1) end
  return {'replayed', revision}
end

local count = tonumber(ARGV[11])
for i = 1, count do
  local at = 6 + 5 * i
  local expected = ARGV[at + 4]
  if expected ~= '' then
    local stored = redis.call('HGET', KEYS[5 + 2 * i], ARGV[at + 3])
    local actual = stored and stored:match('^%d+') or '0'
    if actual ~= expected then return {'stale', ARGV[at + 2], ARGV[at + 3], actual} end
  end
end

local revision = redis.call('HINCRBY', meta, 'revision', 1)
local actor = ARGV[6]
local head = string.format('%s %s %d\n', number(revision), now_ms, #actor) .. actor
local fields = {'request', ARGV[5], 'actor', actor}
for i = 1, count do
  local at = 6 + 5 * i
  local what, kind, name, payload = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]
  local records, index = KEYS[5 + 2 * i], KEYS[6 + 2 * i]
  if what == 'put' then
    redis.call('HSET', records, name, head .. payload)
    redis.call('ZADD', index, 0, name)
    redis.call('SADD', KEYS[6], kind)
  elseif what == 'delete' then
    redis.call('HDEL', records, name)
    redis.call('ZREM', index, name)
  end
  if what ~= 'check' then
    fields[#fields + 1] = what .. i
    fields[#fields + 1] = kind .. '\n' .. name .. '\n' .. payload
  end
end
add_change(KEYS[3], revision, ARGV[8], fields)
for i = 12 + 5 * count, #ARGV do
  add_event(KEYS[4], ARGV[9], ARGV[i])
end
redis.call('SET', request, number(revision) .. ' ' .. fingerprint, 'PX', ARGV[7])
return {'ok', number(revision)}
