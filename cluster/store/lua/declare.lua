-- KEYS: meta, lease, changes, events.  ARGV: seen incarnation, seen revision (of the history that
-- is lost), incarnation for the history that begins, schema, retired incarnations kept, events
-- kept, then the payload of an event, if there is one.

local have = redis.call('HMGET', meta, 'incarnation', 'revision', 'retired')
local current, revision = have[1], tonumber(have[2] or '0')
local seen, seen_revision = ARGV[1], tonumber(ARGV[2])

local retired, known = {}, false
for each in (have[3] or ''):gmatch('%S+') do
  retired[#retired + 1] = each
  known = known or each == seen
end

local behind = not current or (current == seen and revision < seen_revision)
if behind then
  -- A lease that came back with old data belongs to the history that is lost.
  redis.call('DEL', KEYS[2], KEYS[3])
  current = ARGV[3]
  revision = math.max(revision, seen_revision) + 1
  redis.call('HSET', meta, 'schema', ARGV[4], 'incarnation', current, 'revision', number(revision))
end
if current ~= seen and not known then
  retired[#retired + 1] = seen
  while #retired > tonumber(ARGV[5]) do table.remove(retired, 1) end
  redis.call('HSET', meta, 'retired', table.concat(retired, ' '))
  if ARGV[7] then add_event(KEYS[4], ARGV[6], ARGV[7]) end
end
return {'ok', current, number(revision), table.concat(retired, ' ')}
