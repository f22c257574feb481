/**
 * The Lua scripts that keep the state of jobs. Each is one atomic step. Writes of the leader carry a fence;
 * writes of workers are dropped when the job is unknown, so that a late worker cannot raise a ghost of a job
 * that was removed or lost.
 */
import type { Script } from './connection.ts';

/** Refuses a leader that is older than the highest seen, or another one of the same age. */
const FENCE = `
local function fence(key, transitions, leader)
  local seen = redis.call('HMGET', key, 'transitions', 'leader')
  local mine = tonumber(transitions)
  local highest = tonumber(seen[1] or '-1')
  if mine < highest or (mine == highest and seen[2] ~= leader) then
    return redis.error_reply('FENCEDOUT highest seen ' .. tostring(seen[1]) .. ' of leader ' .. tostring(seen[2]))
  end
  if mine > highest then redis.call('HSET', key, 'transitions', transitions, 'leader', leader) end
end
`;

/** Numbers each change, so that an operator that missed the message finds it by polling. */
const CHANGED = `
local function changed(changes, counter, member, channel)
  redis.call('ZADD', changes, redis.call('INCR', counter), member)
  if channel ~= '' then redis.call('PUBLISH', channel, member) end
end
`;

export const NOW = `
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
`;

const script = (name: string, lua: string, critical = false): Script => ({ name, lua, critical });

/** KEYS fence. ARGV transitions, leader. */
export const checkFence = script(
  'checkFence',
  `${FENCE}
local refused = fence(KEYS[1], ARGV[1], ARGV[2])
if refused then return refused end
return 1`,
  true,
);

/** KEYS fence, job. ARGV transitions, leader, uid, descriptor, rev, maxInFlight or '', control channel. */
export const putJob = script(
  'putJob',
  `${FENCE}
local refused = fence(KEYS[1], ARGV[1], ARGV[2])
if refused then return refused end
if redis.call('HGET', KEYS[2], 'descriptor') == ARGV[4] then return 0 end
redis.call('HSET', KEYS[2], 'descriptor', ARGV[4], 'rev', ARGV[5], 'maxInFlight', ARGV[6])
redis.call('PUBLISH', ARGV[7], 'job:' .. ARGV[3])
return 1`,
);

/** KEYS fence, changes, then every key of the job. ARGV transitions, leader, uid, control channel. */
export const removeJob = script(
  'removeJob',
  `${FENCE}
local refused = fence(KEYS[1], ARGV[1], ARGV[2])
if refused then return refused end
redis.call('ZREM', KEYS[2], ARGV[3])
for i = 3, #KEYS do redis.call('DEL', KEYS[i]) end
redis.call('PUBLISH', ARGV[4], 'job:' .. ARGV[3])
return 1`,
  true,
);

/** KEYS fence, job. ARGV transitions, leader, then the fields to clear. */
export const clearFields = script(
  'clearFields',
  `${FENCE}
local refused = fence(KEYS[1], ARGV[1], ARGV[2])
if refused then return refused end
for i = 3, #ARGV do redis.call('HDEL', KEYS[2], ARGV[i]) end
return 1`,
  true,
);

/**
 * KEYS fence, job, done, counted. ARGV transitions, leader, then shard numbers.
 * Their counts stay: nothing per shard is kept from which they could be taken back. The second bitmap remembers that
 * the next result of the shard must not be added again.
 */
export const markMissing = script(
  'markMissing',
  `${FENCE}
local refused = fence(KEYS[1], ARGV[1], ARGV[2])
if refused then return refused end
for i = 3, #ARGV do
  if redis.call('GETBIT', KEYS[3], ARGV[i]) == 1 then
    redis.call('SETBIT', KEYS[3], ARGV[i], 0)
    redis.call('SETBIT', KEYS[4], ARGV[i], 1)
    redis.call('HINCRBY', KEYS[2], 'doneShards', -1)
  end
end
return 1`,
  true,
);

/** What shardDone adds, in this order; also the names of the fields of the job's hash. */
export const COUNT_FIELDS = [
  'completed',
  'failed',
  'expired',
  'cancelled',
  'inputTokens',
  'cachedInputTokens',
  'outputTokens',
  'resultsBytes',
  'errorsBytes',
] as const;

export const RECENT_ERRORS_KEPT = 10;

/**
 * KEYS job, done, counted, open, recent, changes, change counter. ARGV uid, events channel, then per shard: number,
 * the count fields, number of recent errors, the errors. Returns how many shards were new; -1 for an unknown job.
 */
export const shardsDone = script(
  'shardsDone',
  `${CHANGED}
if redis.call('HEXISTS', KEYS[1], 'descriptor') == 0 then return -1 end
local fields = {'${COUNT_FIELDS.join("','")}'}
local known = tonumber(redis.call('HGET', KEYS[1], 'shards') or 'inf')
local new = 0
local at = 3
while at <= #ARGV do
  local shard = ARGV[at]
  local errors = tonumber(ARGV[at + 1 + #fields])
  local first = at + 2 + #fields
  if tonumber(shard) < known and redis.call('SETBIT', KEYS[2], shard, 1) == 0 then
    new = new + 1
    redis.call('HINCRBY', KEYS[1], 'doneShards', 1)
    if redis.call('GETBIT', KEYS[3], shard) == 1 then
      redis.call('SETBIT', KEYS[3], shard, 0)
    else
      for i = 1, #fields do
        local value = ARGV[at + i]
        if value ~= '0' then redis.call('HINCRBY', KEYS[1], fields[i], value) end
      end
      for i = first, first + errors - 1 do redis.call('LPUSH', KEYS[5], ARGV[i]) end
      if errors > 0 then redis.call('LTRIM', KEYS[5], 0, ${RECENT_ERRORS_KEPT - 1}) end
    end
  end
  redis.call('HDEL', KEYS[4], shard)
  at = first + errors
end
if new > 0 then changed(KEYS[6], KEYS[7], ARGV[1], ARGV[2]) end
return new`,
  true,
);

/**
 * KEYS job, done, open, changes, change counter. ARGV uid, then pairs of shard and live counts. Wakes nobody:
 * progress is read when it is due.
 */
export const shardsProgress = script(
  'shardsProgress',
  `${CHANGED}
if redis.call('HEXISTS', KEYS[1], 'descriptor') == 0 then return -1 end
for i = 2, #ARGV, 2 do
  if redis.call('GETBIT', KEYS[2], ARGV[i]) == 0 then redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
end
changed(KEYS[4], KEYS[5], ARGV[1], '')
return 1`,
);

/**
 * KEYS job, held, changes, change counter. ARGV uid, events channel, worker, valid milliseconds, then shards. Says that
 * the worker holds them, or still does; the first of a job wakes the operator.
 */
export const holdShards = script(
  'holdShards',
  `${CHANGED}${NOW}
if redis.call('HEXISTS', KEYS[1], 'descriptor') == 0 then return -1 end
local now = clock()
local first = redis.call('EXISTS', KEYS[2]) == 0
local function whole(number) return string.format('%.0f', number) end
for i = 5, #ARGV do
  local field = ARGV[3] .. ':' .. ARGV[i]
  local stored = redis.call('HGET', KEYS[2], field)
  local since = stored and string.match(stored, '^%d+') or whole(now)
  redis.call('HSET', KEYS[2], field, since .. '|' .. whole(now + tonumber(ARGV[4])))
end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
if first then changed(KEYS[3], KEYS[4], ARGV[1], ARGV[2]) end
return 1`,
);

/** KEYS job, held, changes, change counter. ARGV uid, events channel, worker, shard. The last of a job wakes the operator. */
export const releaseShard = script(
  'releaseShard',
  `${CHANGED}
if redis.call('HDEL', KEYS[2], ARGV[3] .. ':' .. ARGV[4]) == 0 then return 0 end
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 1 then changed(KEYS[3], KEYS[4], ARGV[1], ARGV[2]) end
return 1`,
  true,
);

/**
 * KEYS job, changes, change counter. ARGV uid, events channel, report, JSON, number. `number` is the count of shards for
 * index and published, and whether shards are missing for final. Returns 0 for a report that came too late.
 */
export const report = script(
  'report',
  `${CHANGED}
if redis.call('HEXISTS', KEYS[1], 'descriptor') == 0 then return -1 end
local name, json, number = ARGV[3], ARGV[4], tonumber(ARGV[5])
if name == 'index' then
  redis.call('HSET', KEYS[1], 'shards', number)
elseif name == 'published' then
  if tonumber(redis.call('HGET', KEYS[1], 'publishedShards') or '-1') > number then return 0 end
  redis.call('HSET', KEYS[1], 'publishedShards', number)
elseif name == 'final' then
  if redis.call('HEXISTS', KEYS[1], 'final') == 1 and redis.call('HGET', KEYS[1], 'finalMissing') ~= '1' then return 0 end
  redis.call('HSET', KEYS[1], 'finalMissing', number)
end
redis.call('HSET', KEYS[1], name, json)
changed(KEYS[2], KEYS[3], ARGV[1], ARGV[2])
return 1`,
  true,
);

/** KEYS changes, change counter, job. ARGV member, events channel. Says nothing of a job that was removed meanwhile. */
export const touch = script(
  'touch',
  `${CHANGED}
if ARGV[1] ~= '*' and redis.call('HEXISTS', KEYS[3], 'descriptor') == 0 then return 0 end
changed(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
return 1`,
  true,
);

/**
 * Which of these shards are neither done nor queued; notes them as fed. KEYS job, done, fed, queue meta.
 * ARGV prefix of the entries' keys, length of the queue's event stream, then shard numbers.
 * The length is written here each time, since a Redis that came back empty would keep 10,000 events for each queue.
 */
export const shardsToFeed = script(
  'shardsToFeed',
  `if redis.call('HEXISTS', KEYS[1], 'descriptor') == 0 then return {} end
redis.call('HSET', KEYS[4], 'opts.maxLenEvents', ARGV[2])
local missing = {}
for i = 3, #ARGV do
  if redis.call('GETBIT', KEYS[2], ARGV[i]) == 0 and redis.call('EXISTS', ARGV[1] .. ARGV[i]) == 0 then
    missing[#missing + 1] = ARGV[i]
    redis.call('SADD', KEYS[3], ARGV[i])
  end
end
return missing`,
);

/**
 * The operator's poll. KEYS changes, change counter, workers, holds, hold expiries, fence. ARGV last number seen, channel.
 * Returns the current number, whether a leader ever wrote (nothing left of it means that Redis lost its data), and
 * who changed since.
 */
export const pollChanges = script(
  'pollChanges',
  `${CHANGED}${NOW}
local now = clock()
local gone = redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
local expired = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now)
for i = 1, #expired do
  redis.call('HDEL', KEYS[4], expired[i])
  redis.call('ZREM', KEYS[5], expired[i])
end
if gone > 0 or #expired > 0 then changed(KEYS[1], KEYS[2], '*', ARGV[2]) end
local current = tonumber(redis.call('GET', KEYS[2]) or '0')
local since = tonumber(ARGV[1])
if current < since then since = 0 end
return {current, redis.call('EXISTS', KEYS[6]), redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. since, '+inf')}`,
  true,
);

/** KEYS workers. */
export const countWorkers = script(
  'countWorkers',
  `${NOW}
return redis.call('ZCOUNT', KEYS[1], '(' .. clock(), '+inf')`,
);

/**
 * The worker's poll: says that it lives, and reads what changed. KEYS workers, changes, change counter, plan, holds, then a
 * job each. ARGV worker id, time to live, events channel, plan rev known, then the rev known of each job.
 * Returns plan rev, plan body when it differs, milliseconds it is still valid, holds, and per job: '' when unknown,
 * the known rev when unchanged, otherwise rev, a line break and the descriptor.
 */
export const syncWorker = script(
  'syncWorker',
  `${CHANGED}${NOW}
local now = clock()
if redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1]) == 1 then changed(KEYS[2], KEYS[3], '*', ARGV[3]) end
local plan = redis.call('HMGET', KEYS[4], 'rev', 'validUntil')
local body = ''
if plan[1] and plan[1] ~= ARGV[4] then body = redis.call('HGET', KEYS[4], 'body') end
local holds = {}
local stored = redis.call('HGETALL', KEYS[5])
for i = 2, #stored, 2 do
  local bar = string.find(stored[i], '|', 1, true)
  local left = tonumber(string.sub(stored[i], 1, bar - 1)) - now
  if left > 0 then
    holds[#holds + 1] = left
    holds[#holds + 1] = string.sub(stored[i], bar + 1)
  end
end
local jobs = {}
for i = 6, #KEYS do
  local job = redis.call('HGET', KEYS[i], 'rev')
  if not job then jobs[#jobs + 1] = ''
  elseif job == ARGV[i - 1] then jobs[#jobs + 1] = job
  else jobs[#jobs + 1] = job .. '\\n' .. redis.call('HGET', KEYS[i], 'descriptor') end
end
return {plan[1] or '', body, tonumber(plan[2] or now) - now, holds, jobs}`,
  true,
);

/**
 * KEYS holds, hold expiries, changes, change counter. ARGV field, JSON of the hold, valid milliseconds, events channel,
 * control channel. A hold is stored as '<expiry>|<JSON>'. One that exists keeps its `since`; a renewal that says
 * nothing new wakes nobody.
 */
export const putHold = script(
  'putHold',
  `${CHANGED}${NOW}
local now = clock()
local hold = cjson.decode(ARGV[2])
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local news = true
if stored then
  local bar = string.find(stored, '|', 1, true)
  if tonumber(string.sub(stored, 1, bar - 1)) > now then
    local old = cjson.decode(string.sub(stored, bar + 1))
    hold.since = math.min(old.since, hold.since)
    news = old.reason ~= hold.reason or old.message ~= hold.message
  end
end
local expiry = now + tonumber(ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', expiry) .. '|' .. cjson.encode(hold))
redis.call('ZADD', KEYS[2], expiry, ARGV[1])
if news then
  changed(KEYS[3], KEYS[4], '*', ARGV[4])
  redis.call('PUBLISH', ARGV[5], 'holds')
end
return 1`,
  true,
);

/** KEYS holds, hold expiries, changes, change counter. ARGV field, events channel, control channel. */
export const clearHold = script(
  'clearHold',
  `${CHANGED}
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
changed(KEYS[3], KEYS[4], '*', ARGV[2])
redis.call('PUBLISH', ARGV[3], 'holds')
return 1`,
  true,
);

/** KEYS holds. Returns the JSON of those that have not expired. */
export const readHolds = script(
  'readHolds',
  `${NOW}
local now = clock()
local holds = {}
local stored = redis.call('HVALS', KEYS[1])
for i = 1, #stored do
  local bar = string.find(stored[i], '|', 1, true)
  if tonumber(string.sub(stored[i], 1, bar - 1)) > now then holds[#holds + 1] = string.sub(stored[i], bar + 1) end
end
return holds`,
);
export { FENCE };
