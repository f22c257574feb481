/** Every method of the contract, on a real Redis. */
import { afterAll, afterEach, beforeAll, describe, expect, jest, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { startRedis, type Redis as RedisServer } from '../../hack/stack/redis.ts';
import { noOutcomes, noUsage } from '../batch/model.ts';
import { systemClock } from '../observability/clock.ts';
import { silentLogger } from '../observability/logger.ts';
import { FencedOut, type OperatorQueue, type ShardTask, type Task, type WorkerQueue } from './contract.ts';
import { createOperatorQueue } from './operator-queue.ts';
import { descriptor, FIRST, Gate, shardDone, shortSettings, until } from './testing/fixtures.ts';
import { createWorkerQueue } from './worker-queue.ts';

jest.setTimeout(60_000);

const QUEUE = 'default.llama';
const NEXT = { transitions: 2, leaderUID: 'leader-b' };

let server: RedisServer;
let raw: Redis;
let prefix = 0;
const closers: (() => Promise<void>)[] = [];

beforeAll(async () => {
  server = await startRedis();
  raw = new Redis(server.url);
});
afterEach(async () => {
  await Promise.all(closers.splice(0).map((close) => close()));
});
afterAll(async () => {
  raw.disconnect();
  await server.stop();
});

const base = () => ({
  redisUrl: server.url,
  prefix: `t${prefix}`,
  clock: systemClock,
  logger: silentLogger,
  settings: shortSettings,
});
function operator(): OperatorQueue {
  prefix += 1;
  return operatorAgain();
}
function operatorAgain(): OperatorQueue {
  const queue = createOperatorQueue(base());
  closers.push(() => queue.close());
  return queue;
}
function worker(workerId = 'w1'): WorkerQueue {
  const queue = createWorkerQueue({ ...base(), workerId });
  closers.push(() => queue.close(500));
  return queue;
}
const plan = (cap: number) => [{ queue: QUEUE, replicas: [{ address: 'http://e1', cap }] }];

describe('late calls of a leader that was replaced', () => {
  /** Those without a fence: what they add is checked again by whoever takes it. */
  const late = async (old: OperatorQueue): Promise<void> => {
    await old.withdrawShards(QUEUE, 'u1');
    await old.feedShards(QUEUE, 'u1', [0, 1, 2], 1);
    for (const kind of ['index', 'publish'] as const) await old.queueTask({ kind, uid: 'u1' });
    await old.queueTask({ kind: 'cleanup', uid: 'u1', publishFirst: false });
  };

  test('raise no ghost of a job that is gone', async () => {
    const old = operator();
    const leader = operatorAgain();
    const w = worker();
    const ran: unknown[] = [];
    await old.putPlan(plan(1), 60_000, FIRST);
    await old.putJob(descriptor('u1'), FIRST);
    await old.feedShards(QUEUE, 'u1', [0, 1], 1);
    await leader.removeJob('u1', QUEUE, NEXT);
    await late(old);
    w.serveTasks(async (task) => void ran.push(task), 2);
    w.serveShards(async (shard) => void ran.push(shard), 2);
    await leader.putJob(descriptor('u2'), NEXT);
    await leader.putPlan(plan(1), 60_000, NEXT);
    await leader.queueTask({ kind: 'index', uid: 'u2' });
    await leader.feedShards(QUEUE, 'u2', [0], 1);
    await until('the live job runs', () => ran.length === 2);
    expect(ran).toEqual(
      expect.arrayContaining([
        { kind: 'index', uid: 'u2' },
        { uid: 'u2', shard: 0 },
      ]),
    );
    const keys = await raw.keys(`{t${prefix}}:*u1*`);
    expect(keys).toEqual([]);
  });

  test('cost a live job no shard: the next feeding brings back what they took out, and adds nothing twice', async () => {
    const old = operator();
    const leader = operatorAgain();
    const w = worker();
    await leader.putPlan(plan(1), 60_000, NEXT);
    await leader.putJob(descriptor('u1'), NEXT);
    await leader.feedShards(QUEUE, 'u1', [0, 1, 2, 3], 1);
    await old.withdrawShards(QUEUE, 'u1');
    await old.feedShards(QUEUE, 'u1', [2, 3], 1);
    await leader.feedShards(QUEUE, 'u1', [0, 1, 2, 3], 1);
    const ran: number[] = [];
    w.serveShards(async ({ uid, shard }) => {
      ran.push(shard);
      await w.shardDone(uid, shard, shardDone(1));
    }, 1);
    await until('all are done', async () => (await leader.readJob('u1')).doneShards === 4);
    expect(ran.toSorted()).toEqual([0, 1, 2, 3]);
    await expect(old.putJob(descriptor('u1', { run: 'Stop' }), FIRST)).rejects.toThrow(FencedOut);
    expect((await leader.readJob('u1')).descriptor?.run).toBe('Run');
  });
});

describe('state of a job', () => {
  test('an unknown job reads as lost', async () => {
    const state = await operator().readJob('nobody');
    expect(state.descriptor).toBeUndefined();
    expect(state).toMatchObject({ doneShards: 0, cleaned: false, recentErrors: [] });
    expect(state.done).toHaveLength(0);
  });

  test('reads back what workers reported, in one look', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    const index = { total: 500, invalid: 1, shards: 12, bytes: 9_000, firstInvalid: [] };
    await w.report('u1', { index, doneShards: [{ shard: 3, done: shardDone(250) }] });
    const error = { line: 7, customID: null, code: 'context_length', message: 'zu lang – 長すぎる' };
    await w.shardDone('u1', 9, shardDone(200, { recentErrors: [error], errorsBytes: 44 }));
    w.shardProgress('u1', 4, { ...noOutcomes(), completed: 5, failed: 1 }, { ...noUsage(), inputTokens: 7 });
    await until('progress told', async () => (await leader.readJob('u1')).counts.failed === 1);
    await w.report('u1', { published: { shards: 1, resultsBytes: 10, errorsBytes: 0, at: 5 } });
    await w.report('u1', {
      problem: { task: 'shard', reason: 'AccessDenied', message: 'no', retryable: true, at: 6 },
    });
    const state = await leader.readJob('u1');
    expect(state.descriptor).toEqual(descriptor('u1'));
    expect(state.index).toEqual(index);
    expect(state.doneShards).toBe(2);
    expect([...state.done]).toEqual([0b0001_0000, 0b0100_0000]);
    expect(state.counts).toEqual({ completed: 455, failed: 1, expired: 0, cancelled: 0 });
    expect(state.usage).toEqual({ inputTokens: 4_507, cachedInputTokens: 0, outputTokens: 2_250 });
    expect(state).toMatchObject({ resultsBytes: 45_000, errorsBytes: 44, recentErrors: [error] });
    expect(state.published?.shards).toBe(1);
    expect(state.problem?.reason).toBe('AccessDenied');
    expect(await w.isShardDone('u1', 9)).toBe(true);
    expect(await w.isShardDone('u1', 8)).toBe(false);
  });

  test('a shard counts once, whoever reports it and how often (fusillade#280)', async () => {
    const leader = operator();
    const [a, b] = [worker('a'), worker('b')];
    await leader.putJob(descriptor('u1'), FIRST);
    await Promise.all([a, b, a, b].map((w) => w.shardDone('u1', 0, shardDone(250))));
    await a.report('u1', {
      index: { total: 250, invalid: 0, shards: 1, bytes: 1, firstInvalid: [] },
      doneShards: [{ shard: 0, done: shardDone(250) }],
    });
    const state = await leader.readJob('u1');
    expect(state).toMatchObject({ doneShards: 1, counts: { completed: 250 } });
  });

  test('live counts of a shard that is done are ignored, also when they come late', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    await w.shardDone('u1', 0, shardDone(10));
    w.shardProgress('u1', 0, { ...noOutcomes(), completed: 9 }, noUsage());
    w.shardProgress('u1', 1, { ...noOutcomes(), completed: 1 }, noUsage());
    await until('progress told', async () => (await leader.readJob('u1')).counts.completed !== 10);
    expect((await leader.readJob('u1')).counts.completed).toBe(11);
  });

  test('a missing shard runs again and is not counted twice', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    await w.shardDone('u1', 0, shardDone(10));
    await w.shardDone('u1', 1, shardDone(10));
    await leader.markMissing('u1', [1], FIRST);
    expect(await w.isShardDone('u1', 1)).toBe(false);
    expect((await leader.readJob('u1')).doneShards).toBe(1);
    await w.shardDone('u1', 1, shardDone(10));
    expect(await leader.readJob('u1')).toMatchObject({ doneShards: 2, counts: { completed: 20 } });
  });

  test('a late worker raises no ghost of a removed job (fusillade#295)', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1', { maxInFlight: 3 }), FIRST);
    await w.shardDone('u1', 0, shardDone(10));
    await leader.feedShards(QUEUE, 'u1', [1, 2], 10);
    await leader.queueTask({ kind: 'publish', uid: 'u1' });
    await leader.removeJob('u1', QUEUE, FIRST);
    await leader.removeJob('u1', undefined, FIRST);
    await w.shardDone('u1', 1, shardDone(10));
    w.shardProgress('u1', 2, noOutcomes(), noUsage());
    await w.report('u1', { cleaned: true });
    await leader.feedShards(QUEUE, 'u1', [1, 2], 10);
    expect((await raw.keys(`*t${prefix}*`)).filter((key) => key.includes('u1'))).toEqual([]);
    expect(await raw.zscore(`{t${prefix}}:changes`, 'u1')).toBeNull();
  });

  test('an older publish report does not replace a newer one (aibrix#2564)', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    await w.report('u1', { published: { shards: 5, resultsBytes: 5, errorsBytes: 0, at: 1 } });
    await w.report('u1', { published: { shards: 4, resultsBytes: 4, errorsBytes: 0, at: 2 } });
    expect((await leader.readJob('u1')).published?.shards).toBe(5);
  });

  test('the first final report stands until it is cleared; one that names missing shards gives way', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    const final = (total: number, missing?: number[]) => ({
      final: {
        counts: { ...noOutcomes(), total },
        usage: noUsage(),
        recentErrors: [],
        manifest: 's3://b/m',
        ...(missing === undefined ? {} : { missing }),
      },
    });
    await w.report('u1', final(1, [4]));
    await w.report('u1', final(2));
    await w.report('u1', final(3));
    expect((await leader.readJob('u1')).final?.counts.total).toBe(2);
    await leader.clearReport('u1', 'final', FIRST);
    expect((await leader.readJob('u1')).final).toBeUndefined();
    await w.report('u1', final(4));
    expect((await leader.readJob('u1')).final?.counts.total).toBe(4);
  });

  test.each(['problem', 'index', 'cleaned'] as const)('report %s can be cleared', async (name) => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    await w.report('u1', {
      problem: { task: 'index', reason: 'NoSuchKey', message: '', retryable: false, at: 1 },
    });
    await w.report('u1', {
      index: { total: 1, invalid: 0, shards: 1, bytes: 1, firstInvalid: [] },
      doneShards: [],
    });
    await w.report('u1', { cleaned: true });
    await leader.clearReport('u1', name, FIRST);
    const state = await leader.readJob('u1');
    const present = {
      problem: state.problem !== undefined,
      index: state.index !== undefined,
      cleaned: state.cleaned,
    };
    expect(present).toEqual({ problem: true, index: true, cleaned: true, [name]: false });
  });

  test('a shard number beyond the index, or none at all, changes nothing', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    await w.report('u1', {
      index: { total: 1, invalid: 0, shards: 2, bytes: 1, firstInvalid: [] },
      doneShards: [],
    });
    await w.shardDone('u1', 2, shardDone(1));
    expect((await leader.readJob('u1')).doneShards).toBe(0);
    for (const bad of [-1, 1.5, Number.NaN, 4e9]) {
      await expect(w.shardDone('u1', bad, shardDone(1))).rejects.toThrow(RangeError);
    }
  });
});

describe('fencing', () => {
  const fences = [
    ['the same leader again', FIRST, true],
    ['a newer leader', NEXT, true],
    ['an older leader', { transitions: 0, leaderUID: 'leader-0' }, false],
    ['another leader of the same age', { transitions: 1, leaderUID: 'leader-x' }, false],
  ] as const;
  const writes: [string, (leader: OperatorQueue, fence: typeof FIRST) => Promise<void>][] = [
    ['putJob', (leader, fence) => leader.putJob(descriptor('u1', { generation: 2 }), fence)],
    ['removeJob', (leader, fence) => leader.removeJob('u1', QUEUE, fence)],
    ['clearReport', (leader, fence) => leader.clearReport('u1', 'problem', fence)],
    ['markMissing', (leader, fence) => leader.markMissing('u1', [0], fence)],
    ['putPlan', (leader, fence) => leader.putPlan(plan(4), 60_000, fence)],
  ];
  test.each(writes.flatMap(([name, write]) => fences.map((row) => [name, ...row, write] as const)))(
    '%s by %s',
    async (_name, _who, fence, allowed, write) => {
      const leader = operator();
      await leader.putJob(descriptor('u1'), FIRST);
      const done = write(leader, fence);
      if (allowed) await done;
      else await expect(done).rejects.toThrow(FencedOut);
      if (!allowed) expect((await leader.readJob('u1')).descriptor?.generation).toBe(1);
    },
  );

  test('a leader that thaws after its successor wrote is refused for good', async () => {
    const old = operator();
    const young = operatorAgain();
    await old.putJob(descriptor('u1'), FIRST);
    await young.putJob(descriptor('u1', { run: 'Stop' }), NEXT);
    await expect(old.putJob(descriptor('u1'), FIRST)).rejects.toThrow(
      /leader-b.*refused: 1 of leader leader-a/,
    );
    expect((await young.readJob('u1')).descriptor?.run).toBe('Stop');
  });
});

describe('tasks', () => {
  test('a task exists once per kind and job while it waits or runs, and can be asked for again afterwards', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    for (let i = 0; i < 5; i += 1) await leader.queueTask({ kind: 'publish', uid: 'u1' });
    const seen: Task[] = [];
    const gate = new Gate();
    worker().serveTasks(async (task) => {
      seen.push(task);
      await gate.opened;
    }, 4);
    await until('task runs', () => seen.length > 0);
    await leader.queueTask({ kind: 'publish', uid: 'u1' });
    let ended = false;
    leader.onEvent((uid) => (ended ||= uid === 'u1'));
    gate.open();
    await until('its end wakes the operator', () => ended);
    expect(seen).toEqual([{ kind: 'publish', uid: 'u1' }]);
    await until('asked again', async () => {
      await leader.queueTask({ kind: 'publish', uid: 'u1' });
      return seen.length === 2;
    });
  });

  test('of two finalize tasks with different causes the first wins', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.queueTask({ kind: 'finalize', uid: 'u1', cause: { kind: 'Cancelled' } });
    await leader.queueTask({ kind: 'finalize', uid: 'u1', cause: { kind: 'Expired' } });
    const seen: Task[] = [];
    worker().serveTasks(async (task) => void seen.push(task), 4);
    await until('finalize ran', () => seen.length > 0);
    expect(seen[0]).toMatchObject({ cause: { kind: 'Cancelled' } });
  });

  test('a failing task is tried again with growing pauses until it succeeds', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    const at: number[] = [];
    worker().serveTasks(async () => {
      at.push(performance.now());
      if (at.length < 5) throw new Error('S3 is not there');
    }, 2);
    await leader.queueTask({ kind: 'index', uid: 'u1' });
    await until('fifth try', () => at.length === 5);
    await until('entry gone', async () => (await raw.keys(`*t${prefix}*index-u1`)).length === 0);
  });

  test('the end of the last task of a removed job leaves nothing behind', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.queueTask({ kind: 'cleanup', uid: 'u1', publishFirst: false });
    let running = false;
    const gate = new Gate();
    const w = worker();
    w.serveTasks(async () => {
      running = true;
      await gate.opened;
    }, 2);
    await until('running', () => running);
    await leader.removeJob('u1', QUEUE, FIRST);
    gate.open();
    await w.close(1_000);
    expect(await raw.zscore(`{t${prefix}}:changes`, 'u1')).toBeNull();
    expect((await raw.keys(`*t${prefix}*`)).filter((key) => key.includes('u1'))).toEqual([]);
  });

  test('waits as long as it is told to', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    const asked = performance.now();
    const seen: number[] = [];
    worker().serveTasks(async () => void seen.push(performance.now()), 2);
    await leader.queueTask({ kind: 'index', uid: 'u1' }, 300);
    await until('ran', () => seen.length === 1);
    expect((seen[0] ?? 0) - asked).toBeGreaterThanOrEqual(300);
  });

  test('a task of a job that Redis does not know ends without being run', async () => {
    const leader = operator();
    const seen: string[] = [];
    worker().serveTasks(async (task) => void seen.push(task.uid), 2);
    await leader.queueTask({ kind: 'index', uid: 'ghost' });
    await until('entry gone', async () => (await raw.keys(`*t${prefix}*index-ghost`)).length === 0);
    expect(seen).toEqual([]);
  });

  test('long index tasks do not keep other tasks waiting', async () => {
    const leader = operator();
    const gate = new Gate();
    let published = false;
    worker().serveTasks(async (task) => {
      if (task.kind === 'index') await gate.opened;
      else published = true;
    }, 2);
    for (const uid of ['a1', 'a2', 'a3']) {
      await leader.putJob(descriptor(uid), FIRST);
      await leader.queueTask({ kind: 'index', uid });
    }
    await leader.queueTask({ kind: 'publish', uid: 'a1' });
    await until('published', () => published);
    gate.open();
  });
});

describe('shards', () => {
  test('each fed shard is run once, and feeding what waits, runs or is done adds nothing (batch-gateway#293, #523)', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(4), 60_000, FIRST);
    const window = [0, 1, 2, 3, 4, 5];
    for (let i = 0; i < 3; i += 1) await leader.feedShards(QUEUE, 'u1', window, 10);
    const runs: number[] = [];
    const w = worker();
    w.serveShards(async ({ uid, shard }) => {
      await leader.feedShards(QUEUE, 'u1', window, 10);
      runs.push(shard);
      await w.shardDone(uid, shard, shardDone(1));
    }, 2);
    await until('all done', async () => (await leader.readJob('u1')).doneShards === 6);
    await leader.feedShards(QUEUE, 'u1', window, 10);
    await until('queue empty', async () => (await raw.keys(`*t${prefix}*:u1-*`)).length === 0);
    expect(runs.sort()).toEqual(window);
  });

  test('a shard handed back is gone until it is fed again', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(4), 60_000, FIRST);
    const runs: ShardTask[] = [];
    worker().serveShards(async (task) => void runs.push(task), 2);
    await leader.feedShards(QUEUE, 'u1', [7], 10);
    await until('handed back', async () => runs.length === 1 && (await raw.keys(`*:u1-7`)).length === 0);
    await leader.feedShards(QUEUE, 'u1', [7], 10);
    await until('again', () => runs.length === 2);
  });

  test('no more than `hands` are open at a time, lower priority numbers go first', async () => {
    const leader = operator();
    await leader.putJob(descriptor('low'), FIRST);
    await leader.putJob(descriptor('high'), FIRST);
    await leader.feedShards(QUEUE, 'low', [0, 1, 2], 2_000);
    await leader.feedShards(QUEUE, 'high', [0, 1, 2], 1);
    await leader.putPlan(plan(4), 60_000, FIRST);
    const order: string[] = [];
    let open = 0;
    let most = 0;
    worker().serveShards(async ({ uid }) => {
      order.push(uid);
      most = Math.max(most, (open += 1));
      await new Promise((resolve) => setTimeout(resolve, 5));
      open -= 1;
    }, 2);
    await until('all ran', () => order.length === 6);
    expect(most).toBeLessThanOrEqual(2);
    expect(order.slice(0, 3)).toEqual(['high', 'high', 'high']);
  });

  test.each([0, -1, 1.5, 2_097_152, Number.NaN])('priority %s is refused', async (priority) => {
    const leader = operator();
    await expect(leader.feedShards(QUEUE, 'u1', [0], priority)).rejects.toThrow(/integer from 1/);
    await expect(leader.putJob(descriptor('u1', { priority }), FIRST)).rejects.toThrow(RangeError);
  });

  test('what waits can be counted', async () => {
    prefix += 1;
    const leader = createOperatorQueue(base());
    closers.push(() => leader.close());
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.feedShards(QUEUE, 'u1', [0, 1, 2], 10);
    await leader.queueTask({ kind: 'index', uid: 'u1' });
    await leader.queueTask({ kind: 'publish', uid: 'u1' }, 60_000);
    expect(await leader.readDepths([QUEUE, 'other.m'])).toEqual([
      { queue: 'index', waiting: 1 },
      { queue: 'tasks', waiting: 1 },
      { queue: QUEUE, waiting: 3 },
      { queue: 'other.m', waiting: 0 },
    ]);
  });

  test('withdrawing takes waiting shards out and leaves open ones to their worker', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putJob(descriptor('u2'), FIRST);
    await leader.putPlan(plan(4), 60_000, FIRST);
    const gate = new Gate();
    const runs: string[] = [];
    worker().serveShards(async ({ uid, shard }) => {
      runs.push(`${uid}/${shard}`);
      await gate.opened;
    }, 1);
    await leader.feedShards(QUEUE, 'u1', [0, 1, 2, 3], 10);
    await until('one open', () => runs.length === 1);
    await leader.feedShards(QUEUE, 'u2', [5], 10);
    await leader.withdrawShards(QUEUE, 'u1');
    gate.open();
    await until('the other job goes on', () => runs.length === 2);
    expect(runs).toEqual(['u1/0', 'u2/5']);
  });

  test('a 2-shard job takes its turn beside one whose window is always full', async () => {
    const leader = operator();
    await leader.putJob(descriptor('big'), FIRST);
    await leader.putJob(descriptor('small'), FIRST);
    await leader.putPlan(plan(4), 60_000, FIRST);
    const order: string[] = [];
    let next = 0;
    const refill = async () => leader.feedShards(QUEUE, 'big', [next++], 10);
    for (let i = 0; i < 4; i += 1) await refill();
    worker().serveShards(async ({ uid }) => {
      const taken = order.push(uid);
      if (uid === 'big' && next < 4_000) await refill();
      if (taken === 50) await leader.feedShards(QUEUE, 'small', [0, 1], 10);
    }, 2);
    await until('small done', () => order.filter((uid) => uid === 'small').length === 2);
    // Behind it at most the window that was queued before it came, and what was open.
    expect(order.slice(50, 60).filter((uid) => uid === 'small')).toHaveLength(2);
  });

  test('queues follow the plan: a deployment that leaves is served no more, one that comes is', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    const runs: string[] = [];
    const w = worker();
    w.serveShards(async ({ shard }) => void runs.push(String(shard)), 2);
    await leader.putPlan(plan(4), 60_000, FIRST);
    await leader.feedShards(QUEUE, 'u1', [0], 10);
    await until('served', () => runs.length === 1);
    expect(w.plan(QUEUE)?.replicas).toEqual([{ address: 'http://e1', cap: 4 }]);
    await leader.putPlan([{ queue: 'other.m', replicas: [] }], 60_000, FIRST);
    await until('new plan seen', () => w.plan('other.m') !== undefined);
    expect(w.plan(QUEUE)).toBeUndefined();
    await leader.feedShards('other.m', 'u1', [3], 10);
    await until('the new one is served', () => runs.length === 2);
    expect(runs).toEqual(['0', '3']);
  });
});

describe('a consumer that takes nothing although entries wait (bullmq#2466, #4384)', () => {
  test('is replaced, makes the worker unhealthy when that does not help, and recovers', async () => {
    const leader = operator();
    const w = createWorkerQueue({
      ...base(),
      workerId: 'w1',
      settings: { ...shortSettings, watchdogMilliseconds: 150 },
    });
    closers.push(() => w.close(500));
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(4), 60_000, FIRST);
    const runs: number[] = [];
    w.serveShards(async ({ shard }) => void runs.push(shard), 2);
    await until('healthy', () => w.healthy());
    // Nothing but a paused queue makes BullMQ idle on demand.
    await raw.hset(`{t${prefix}}:bull:tg-shards-${QUEUE}:meta`, 'paused', 1);
    await leader.feedShards(QUEUE, 'u1', [0], 10);
    await until('unhealthy', () => !w.healthy());
    expect(runs).toEqual([]);
    await raw.hdel(`{t${prefix}}:bull:tg-shards-${QUEUE}:meta`, 'paused');
    await until('taken', () => runs.length === 1);
    await until('healthy again', () => w.healthy());
  });
});

describe('what wakes whom', () => {
  test('workers see a changed descriptor, and its removal', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    expect((await w.job('u1'))?.run).toBe('Run');
    const seen: (string | undefined)[] = [];
    w.onJobChange('u1', (changed) => seen.push(changed?.run));
    await leader.putJob(descriptor('u1', { run: 'Suspend' }), FIRST);
    await until('change seen', () => seen.length === 1);
    await leader.removeJob('u1', QUEUE, FIRST);
    await until('removal seen', () => seen.length === 2);
    expect(seen).toEqual(['Suspend', undefined]);
    expect(await w.job('u1')).toBeUndefined();
  });

  test('a descriptor whose message was lost is found by polling', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    await w.job('u1');
    const key = `{t${prefix}}:job:u1`;
    await raw.hset(key, 'descriptor', JSON.stringify(descriptor('u1', { run: 'Stop' })), 'rev', 'x');
    await until('seen', async () => (await w.job('u1'))?.run === 'Stop');
  });

  test('an operator hears of each report, and of what was said while it was away', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putJob(descriptor('u2'), FIRST);
    await w.report('u1', { cleaned: true });
    const later = operatorAgain();
    const seen = new Set<string | undefined>();
    later.onEvent((uid) => seen.add(uid));
    await until('told afterwards', () => seen.has('u1'));
    await w.shardDone('u2', 0, shardDone(1));
    await until('told at once', () => seen.has('u2'));
  });

  test('a listener that throws breaks nothing', async () => {
    const leader = operator();
    const w = worker();
    await leader.putJob(descriptor('u1'), FIRST);
    let heard = 0;
    leader.onEvent(() => {
      throw new Error('no');
    });
    leader.onEvent(() => (heard += 1));
    w.onJobChange('u1', () => {
      throw new Error('no');
    });
    await w.report('u1', { cleaned: true });
    await until('the other listener hears', () => heard > 0);
    await leader.putJob(descriptor('u1', { run: 'Stop' }), FIRST);
    await until('still refreshed', async () => (await w.job('u1'))?.run === 'Stop');
  });

  test('holds are seen on both sides, keep their beginning, and end by themselves', async () => {
    const leader = operator();
    const w = worker();
    let woken = 0;
    leader.onEvent((uid) => (woken += uid === undefined ? 1 : 0));
    const hold = { scope: '*', reason: 'ModelNotFound', message: 'no “llama”', since: 100 };
    await w.putHold(QUEUE, hold, 60_000);
    await w.putHold(QUEUE, { ...hold, since: 900, message: 'still' }, 60_000);
    await w.putHold(QUEUE, { ...hold, scope: 'http://e1' }, 60_000);
    await w.putHold('other.m', { ...hold, scope: 'http://e1' }, 60_000);
    await until('worker sees both', () => w.holds(QUEUE).length === 2);
    expect(await leader.readHolds(QUEUE)).toEqual([
      { ...hold, message: 'still' },
      { ...hold, scope: 'http://e1' },
    ]);
    await w.clearHold(QUEUE, 'http://e1');
    await until('cleared', () => w.holds(QUEUE).length === 1);
    await until('operator was woken', () => woken > 0);
    woken = 0;
    await w.putHold(QUEUE, hold, 50);
    await until('expired for all', async () => (await leader.readHolds(QUEUE)).length === 0);
    await until('worker too', () => w.holds(QUEUE).length === 0);
    await until('operator was woken by the end', () => woken > 0);
  });

  test('shards are seen while workers hold them, and who waits for the last one is woken', async () => {
    const leader = operator();
    const w = worker();
    const gate = new Gate();
    w.serveShards(() => gate.opened, 2);
    await leader.putPlan(plan(1), 60_000, FIRST);
    await leader.putJob(descriptor('u1'), FIRST);
    let woken = 0;
    leader.onEvent((uid) => (woken += uid === 'u1' ? 1 : 0));
    await leader.feedShards(QUEUE, 'u1', [3, 4], 1);
    await until('both are held', async () => (await leader.readJob('u1')).openShards === 2);
    await until('the leader is woken', () => woken > 0);
    await until('time counts', async () => (await leader.readJob('u1')).openForMilliseconds >= 50);
    woken = 0;
    gate.open();
    await until('none is held', async () => (await leader.readJob('u1')).openShards === 0);
    await until('the leader is woken again', () => woken > 0);
    expect((await leader.readJob('u1')).openForMilliseconds).toBe(0);
  });

  test('what a killed worker held is not held for ever', async () => {
    const leader = operator();
    await leader.putJob(descriptor('u1'), FIRST);
    const now = Date.now();
    await raw.hset(
      `{t${prefix}}:job:u1:held`,
      'dead:1',
      `${now - 500}|${now - 1}`,
      'w:2',
      `${now}|${now + 60_000}`,
    );
    expect(await leader.readJob('u1')).toMatchObject({ openShards: 1 });
  });

  test('places are paused from an empty Redis on for one lease time', async () => {
    const leader = operator();
    expect(await leader.grantsPaused()).toBe(true);
    await leader.putPlan(plan(1), 60_000, FIRST);
    expect(await leader.grantsPaused()).toBe(true);
    await until('over', async () => !(await leader.grantsPaused()));
  });

  test('workers are counted while they live', async () => {
    const leader = operator();
    const a = worker('a');
    worker('b');
    await until('both', async () => (await leader.liveWorkers()) === 2);
    await a.close(100);
    expect(await leader.liveWorkers()).toBe(1);
    await until('healthy', () => leader.healthy());
  });
});
