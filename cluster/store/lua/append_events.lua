-- KEYS: meta, lease, events.  ARGV: seen incarnation, seen revision, epoch, events kept, then the
-- payloads.

local gone = lost() or fenced(KEYS[2], ARGV[3])
if gone then return gone end
local sequence = '0'
for i = 5, #ARGV do
  sequence = add_event(KEYS[3], ARGV[4], ARGV[i])
end
return {'ok', sequence}
