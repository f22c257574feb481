/**
 * How places are shared: the leader's plan, and one negotiation step of one worker.
 *
 * A pool is a hash: worker → 'granted|want|inUse|expiry|sequence'. The invariant is that the sum of what
 * unexpired workers were granted never exceeds the cap. A grant is lowered only by the worker itself (`keep`), which
 * stops using the rest before it says so; it is raised only from what is free. So no order of lost, late or repeated
 * messages can give a place twice.
 */
import type { Script } from './connection.ts';
import { FENCE, NOW } from './job-scripts.ts';

/**
 * KEYS fence, plan, caps. ARGV transitions, leader, body, rev, valid milliseconds, lease milliseconds, run id, epoch, control
 * channel, then address and cap in turn. Where no plan is left, or the server process is another one (its last
 * second may be lost), nothing new is granted for one lease time while workers register what they hold.
 */
export const putPlan: Script = {
  name: 'putPlan',
  critical: true,
  lua: `${FENCE}${NOW}
local refused = fence(KEYS[1], ARGV[1], ARGV[2])
if refused then return refused end
local now = clock()
local known = redis.call('HMGET', KEYS[2], 'epoch', 'runId', 'body')
local function whole(number) return string.format('%.0f', number) end
if not known[1] then redis.call('HSET', KEYS[2], 'epoch', ARGV[8]) end
if not known[1] or known[2] ~= ARGV[7] then
  redis.call('HSET', KEYS[2], 'runId', ARGV[7], 'grantAfter', whole(now + tonumber(ARGV[6])))
end
redis.call('HSET', KEYS[2], 'validUntil', whole(now + tonumber(ARGV[5])))
if known[3] == ARGV[3] then return 0 end
redis.call('HSET', KEYS[2], 'body', ARGV[3], 'rev', ARGV[4])
redis.call('DEL', KEYS[3])
for i = 10, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
redis.call('PUBLISH', ARGV[9], 'plan')
return 1`,
};

/** Cap of a pool that has none: a job without maxInFlight. */
export const UNLIMITED = -1;
/** Cap of a pool that nobody planned: nothing new is granted. */
export const UNPLANNED = -2;

/**
 * KEYS plan, caps, then per pool its hash and, for a job, the job's hash (for an address the caps again).
 * ARGV worker, lease milliseconds, run id, sequence, rotation milliseconds, then per pool: address or '' for a job, want, keep,
 * in use. Returns per pool: granted, target, cap.
 *
 * Targets are max-min fair: small wants are met whole, the others get equal shares. What does not divide evenly goes
 * to some, who change with time, so that at a cap below the number of workers each gets its turn.
 */
export const negotiate: Script = {
  name: 'negotiate',
  critical: true,
  lua: `${NOW}
local now = clock()
local me, lease, runId = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local sequence, rotation = tonumber(ARGV[4]), tonumber(ARGV[5])

local plan = redis.call('HMGET', KEYS[1], 'epoch', 'validUntil', 'grantAfter', 'runId')
local planned = plan[1] and true or false
local grantAfter = tonumber(plan[3] or '0')
if planned and plan[4] ~= runId then
  grantAfter = now + lease
  redis.call('HSET', KEYS[1], 'runId', runId, 'grantAfter', string.format('%.0f', grantAfter))
end
local registering = not planned or now < grantAfter
local granting = planned and not registering and now < tonumber(plan[2] or '0')

local function parse(text)
  local granted, want, inUse, expiry, seq = string.match(text, '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)$')
  return tonumber(granted), tonumber(want), tonumber(inUse), tonumber(expiry), tonumber(seq)
end

local function fairShare(cap, wants)
  table.sort(wants, function(a, b)
    if a.want ~= b.want then return a.want < b.want end
    return a.id < b.id
  end)
  local left, count = cap, #wants
  for i = 1, #wants do
    local even = math.floor(left / count)
    if wants[i].want > even then
      local extra = left - even * count
      local tail = {}
      for j = i, #wants do tail[#tail + 1] = wants[j].id end
      table.sort(tail)
      local turn = math.floor(now / rotation) % count
      for j = 1, #tail do
        if tail[j] == me then
          local place = (j - 1 - turn) % count
          return place < extra and even + 1 or even
        end
      end
      return 0
    end
    if wants[i].id == me then return wants[i].want end
    left = left - wants[i].want
    count = count - 1
  end
  return 0
end

local answers = {}
local pools = (#KEYS - 2) / 2
for p = 1, pools do
  local pool, source = KEYS[1 + 2 * p], KEYS[2 + 2 * p]
  local at = 2 + 4 * p
  local address, want, keep, inUse = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local isJob = address == ''
  local cap
  if isJob then
    local job = redis.call('HMGET', source, 'descriptor', 'maxInFlight')
    if not job[1] then cap = ${UNPLANNED} elseif job[2] == '' then cap = ${UNLIMITED} else cap = tonumber(job[2]) end
  else
    cap = tonumber(redis.call('HGET', source, address) or '${UNPLANNED}')
  end
  if want < inUse then want = inUse end

  local stored = redis.call('HGETALL', pool)
  local others, wants = 0, {{id = me, want = want}}
  local granted, late = 0, false
  for i = 1, #stored, 2 do
    local theirs, theirWant, theirUse, expiry, seq = parse(stored[i + 1])
    if not expiry then
      redis.call('HDEL', pool, stored[i])
    elseif stored[i] == me then
      if expiry > now then
        granted = math.min(theirs, keep)
        late = seq >= sequence
        if late then granted = theirs end
      end
    elseif expiry <= now then
      redis.call('HDEL', pool, stored[i])
    else
      others = others + theirs
      wants[#wants + 1] = {id = stored[i], want = math.max(theirWant, theirUse)}
    end
  end
  -- Only while everybody says again what they hold is a worker's word enough: what Redis knows may be gone or old.
  if registering and not late then granted = keep end
  -- A job's cap may have come while its lines were in flight: those are counted, and finish.
  if isJob and granted < inUse then granted = inUse end

  local target = 0
  if cap == ${UNLIMITED} then
    target = want
    granted = inUse
  elseif cap >= 0 then
    target = fairShare(cap, wants)
    local free = cap - others - granted
    if granting and not late and target > granted and free > 0 then granted = granted + math.min(target - granted, free) end
  end

  if not late then
    if granted == 0 and want == 0 then
      redis.call('HDEL', pool, me)
    else
      redis.call('HSET', pool, me, string.format('%d|%d|%d|%.0f|%d', granted, want, inUse, now + lease, sequence))
      redis.call('PEXPIRE', pool, lease * 4)
    end
  end
  answers[#answers + 1] = granted
  answers[#answers + 1] = target
  answers[#answers + 1] = cap
end
return answers`,
};

/** KEYS caps, then pools. ARGV addresses. Returns per address: cap, granted, in use. */
export const readCapacity: Script = {
  name: 'readCapacity',
  critical: false,
  lua: `${NOW}
local now = clock()
local answers = {}
for i = 1, #ARGV do
  local granted, used = 0, 0
  local stored = redis.call('HVALS', KEYS[i + 1])
  for j = 1, #stored do
    local g, _, u, expiry = string.match(stored[j], '^(%d+)|(%d+)|(%d+)|(%d+)|')
    if tonumber(expiry) > now then
      granted = granted + tonumber(g)
      used = used + tonumber(u)
    end
  end
  answers[#answers + 1] = tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')
  answers[#answers + 1] = granted
  answers[#answers + 1] = used
end
return answers`,
};
