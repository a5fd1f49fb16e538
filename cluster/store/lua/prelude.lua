-- Stands before every script.  KEYS[1]: meta.  ARGV[1..2]: incarnation and revision that the caller
-- has seen.  A reply is a list whose first element says what came of it.

local meta = KEYS[1]
local time = redis.call('TIME')
local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

local function number(value)
  return string.format('%.0f', value)
end

-- The store is not, or no more, the one that the caller knows.
local function lost()
  local have = redis.call('HMGET', meta, 'incarnation', 'revision')
  if have[1] ~= ARGV[1] or tonumber(have[2]) < tonumber(ARGV[2]) then
    return {'lost', have[1] or '', have[2] or '0'}
  end
end

-- A lease is "epoch holder address".
local function lease_of(key)
  local text = redis.call('GET', key)
  if text then
    return text:match('^(%d+) (%S+) (.*)$')
  end
end

-- `epoch` is '' for a writer that claims no leadership.
local function fenced(key, epoch)
  if epoch ~= '' then
    local current, _, address = lease_of(key)
    if current ~= epoch then
      return {'fenced', current or '', address or ''}
    end
  end
end

-- One entry a revision, with the revision as its id, so a reader sees that none is missing.
local function add_change(key, revision, keep, fields)
  redis.call('XADD', key, 'MAXLEN', keep, number(revision) .. '-0',
    'incarnation', ARGV[1], 'unix_ms', now_ms, unpack(fields))
end

local function add_event(key, keep, payload)
  local sequence = number(redis.call('HINCRBY', meta, 'event', 1))
  redis.call('XADD', key, 'MAXLEN', keep, sequence .. '-0', 'unix_ms', now_ms, 'payload', payload)
  return sequence
end
