/** What happens when processes die, stop or lose Redis; on a real Redis, with shortened leases and locks. */
import { type ChildProcess, spawn } from 'node:child_process';
import { createServer, type Server, type Socket, connect } from 'node:net';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, jest, test } from '@jest/globals';
import { Redis } from 'ioredis';
import { startRedis, type Redis as RedisServer, type RedisOptions } from '../../hack/stack/redis.ts';
import { systemClock } from '../observability/clock.ts';
import type { Clock } from '../observability/contract.ts';
import { silentLogger } from '../observability/logger.ts';
import type { OperatorQueue, Place, ShardTask, WorkerQueue } from './contract.ts';
import { LockLost, QueueUnavailable } from './errors.ts';
import { createOperatorQueue } from './operator-queue.ts';
import type { QueueSettings } from './settings.ts';
import {
  descriptor,
  FIRST,
  Gate,
  JumpingClock,
  shardDone,
  shortSettings,
  until,
} from './testing/fixtures.ts';
import { createWorkerQueue } from './worker-queue.ts';

jest.setTimeout(60_000);

const QUEUE = 'default.llama';
const ADDRESS = 'http://e1';
const POOL = { address: ADDRESS };
const plan = (cap: number) => [{ queue: QUEUE, replicas: [{ address: ADDRESS, cap }] }];

const cleanups: (() => Promise<unknown> | void)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function redisServer(options: RedisOptions = {}): Promise<RedisServer> {
  const server = await startRedis(options);
  cleanups.push(() => server.stop());
  return server;
}
function rawClient(url: string): Redis {
  const raw = new Redis(url);
  raw.on('error', () => undefined);
  cleanups.push(() => raw.disconnect());
  return raw;
}
interface Overrides {
  clock?: Clock;
  settings?: Partial<QueueSettings>;
}
const options = (redisUrl: string, { clock = systemClock, settings = {} }: Overrides) => ({
  redisUrl,
  prefix: 'tg',
  clock,
  logger: silentLogger,
  settings: { ...shortSettings, ...settings },
});
function operator(url: string, overrides: Overrides = {}): OperatorQueue {
  const queue = createOperatorQueue(options(url, overrides));
  cleanups.push(() => queue.close());
  return queue;
}
function worker(url: string, workerId: string, overrides: Overrides = {}): WorkerQueue {
  const queue = createWorkerQueue({ ...options(url, overrides), workerId });
  cleanups.push(() => queue.close(200));
  return queue;
}

/** Takes all places it can, and says how many run. */
class Greedy {
  readonly held = new Set<Place>();
  lost = 0;
  sated = false;
  readonly #queue: WorkerQueue;
  constructor(queue: WorkerQueue, want: number) {
    this.#queue = queue;
    queue.places.onFree(() => this.fill());
    queue.places.setWant(POOL, want);
    this.fill();
  }
  fill(): void {
    if (this.sated) return;
    for (
      let place = this.#queue.places.take([POOL]);
      place !== undefined;
      place = this.#queue.places.take([POOL])
    ) {
      const taken = place;
      this.held.add(taken);
      taken.signal.addEventListener('abort', () => {
        this.held.delete(taken);
        this.lost += 1;
      });
    }
  }
  releaseSome(count: number): void {
    for (const place of [...this.held].slice(0, count)) {
      this.held.delete(place);
      place.release();
    }
  }
}

interface ProcessFacts {
  child: ChildProcess;
  opened: number[];
  inFlight: number;
  lost: number;
}
function workerProcess(url: string, workerId: string, want: number): ProcessFacts {
  const program = fileURLToPath(new URL('./testing/worker-process.ts', import.meta.url));
  const args = [program, url, 'tg', workerId, JSON.stringify(shortSettings), ADDRESS, String(want)];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const facts: ProcessFacts = { child, opened: [], inFlight: 0, lost: 0 };
  createInterface({ input: child.stdout }).on('line', (line) => {
    const fact = JSON.parse(line) as { open?: number; inFlight?: number; lost?: number };
    if (fact.open !== undefined) facts.opened.push(fact.open);
    if (fact.inFlight !== undefined) facts.inFlight = fact.inFlight;
    if (fact.lost !== undefined) facts.lost = fact.lost;
  });
  cleanups.push(() => void child.kill('SIGKILL'));
  return facts;
}

describe('places of several workers', () => {
  test('two workers share a cap evenly, and what one leaves the other gets', async () => {
    const { url } = await redisServer();
    const leader = operator(url);
    const [a, b] = [worker(url, 'a'), worker(url, 'b')];
    const [greedyA, greedyB] = [new Greedy(a, 100), new Greedy(b, 100)];
    let most = 0;
    const count = (): number => {
      most = Math.max(most, greedyA.held.size + greedyB.held.size);
      return greedyA.held.size;
    };
    await leader.putPlan(plan(10), 60_000, FIRST);
    await until('all places taken', () => count() + greedyB.held.size === 10);
    await until('even', () => {
      count();
      if (greedyA.held.size > 5) greedyA.releaseSome(1);
      if (greedyB.held.size > 5) greedyB.releaseSome(1);
      return greedyA.held.size === 5 && greedyB.held.size === 5;
    });
    greedyA.sated = true;
    a.places.setWant(POOL, 0);
    greedyA.releaseSome(5);
    await until('b has all', () => count() === 0 && greedyB.held.size === 10);
    expect(most).toBeLessThanOrEqual(10);
    await until('capacity is told', async () => {
      const [capacity] = await leader.readCapacity([ADDRESS]);
      return capacity?.inFlight === 10 && capacity.granted === 10 && capacity.cap === 10;
    });
    expect(await leader.readCapacity(['http://other'])).toEqual([
      { address: 'http://other', cap: 0, granted: 0, inFlight: 0 },
    ]);
  });

  test('a worker frozen past its lease aborts its requests; the others get its places (issue 3, point 7)', async () => {
    const { url } = await redisServer();
    const leader = operator(url);
    const clock = new JumpingClock();
    const a = worker(url, 'a', { clock });
    const greedy = new Greedy(a, 4);
    await leader.putPlan(plan(4), 60_000, FIRST);
    await until('taken', () => greedy.held.size === 4);
    clock.jump(shortSettings.leaseMilliseconds);
    greedy.fill();
    expect([greedy.lost, greedy.held.size]).toEqual([4, 0]);
    await until('renewed', () => greedy.held.size === 4);
  });

  test('a process stopped by SIGSTOP loses its places to others, and lets go of them when it continues', async () => {
    const { url } = await redisServer();
    const leader = operator(url);
    await leader.putPlan(plan(4), 60_000, FIRST);
    const frozen = workerProcess(url, 'frozen', 4);
    await until('it has all places', () => frozen.inFlight === 4);
    const greedy = new Greedy(worker(url, 'b'), 4);
    frozen.child.kill('SIGSTOP');
    await until('its lease ran out', () => greedy.held.size === 4);
    frozen.child.kill('SIGCONT');
    await until('it aborted what it started', () => frozen.lost === 4);
    expect(greedy.held.size).toBe(4);
    expect(greedy.lost).toBe(0);
  });

  test('the places of a killed process come back after the lease', async () => {
    const { url } = await redisServer();
    const leader = operator(url);
    await leader.putPlan(plan(4), 60_000, FIRST);
    const doomed = workerProcess(url, 'doomed', 4);
    await until('it has all places', () => doomed.inFlight === 4);
    doomed.child.kill('SIGKILL');
    const greedy = new Greedy(worker(url, 'b'), 4);
    await until('taken over', () => greedy.held.size === 4);
  });

  test('a worker that closes gives its places back at once', async () => {
    const { url } = await redisServer();
    const settings = { leaseMilliseconds: 60_000, leaseMarginMilliseconds: 100 };
    const leader = operator(url);
    await leader.putPlan(plan(4), 60_000, FIRST);
    const a = worker(url, 'a', { settings });
    const greedy = new Greedy(a, 4);
    await until('taken', () => greedy.held.size === 4);
    await a.close(100);
    const next = new Greedy(worker(url, 'b', { settings }), 4);
    await until('taken over', () => next.held.size === 4);
  });
});

describe('Redis is lost', () => {
  test('emptied mid-run: what runs goes on, nothing new is granted twice, the operator is told', async () => {
    const { url } = await redisServer();
    const raw = rawClient(url);
    const leader = operator(url);
    const [a, b] = [worker(url, 'a'), worker(url, 'b')];
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(6), 60_000, FIRST);
    const greedy = new Greedy(a, 6);
    await until('taken', () => greedy.held.size === 6);
    const late = new Greedy(b, 6);
    let told = 0;
    let gone = false;
    leader.onEvent((uid) => (told += uid === undefined ? 1 : 0));
    a.onJobChange('u1', (changed) => (gone = changed === undefined));
    await until('seen', async () => (await a.job('u1')) !== undefined);
    await raw.flushall();
    await until('operator told of the loss', () => told > 0);
    await until('worker sees it too', () => gone);
    expect((await leader.readJob('u1')).descriptor).toBeUndefined();
    await leader.putPlan(plan(6), 60_000, FIRST);
    const replanned = performance.now();
    await until('registered again', async () => (await leader.readCapacity([ADDRESS]))[0]?.inFlight === 6);
    await until(
      'one lease time is over',
      () => performance.now() - replanned > shortSettings.leaseMilliseconds * 1.5,
    );
    expect([greedy.held.size, greedy.lost, late.held.size]).toEqual([6, 0, 0]);
    greedy.releaseSome(6);
    await until('shared evenly', () => {
      if (greedy.held.size > 3) greedy.releaseSome(1);
      if (late.held.size > 3) late.releaseSome(1);
      return greedy.held.size === 3 && late.held.size === 3;
    });
  });

  test('restarted with its append-only file: nothing is lost, work goes on by itself', async () => {
    const server = await redisServer({ appendOnly: true });
    const leader = operator(server.url);
    const w = worker(server.url, 'w');
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(4), 60_000, FIRST);
    await w.report('u1', {
      index: { total: 10, invalid: 0, shards: 10, bytes: 1, firstInvalid: [] },
      doneShards: [],
    });
    w.serveShards(async ({ uid, shard }) => {
      for (;;) {
        try {
          return await w.shardDone(uid, shard, shardDone(1));
        } catch (error) {
          if (!(error instanceof QueueUnavailable)) throw error;
          // A call on a connection known to be down fails at once; without a pause nothing else would ever run.
          await new Promise((resolve) => setTimeout(resolve, 10));
        }
      }
    }, 1);
    await leader.feedShards(QUEUE, 'u1', [0, 1, 2], 10);
    await until('some done', async () => (await leader.readJob('u1')).doneShards > 0);
    await server.kill('SIGKILL');
    await expect(leader.readJob('u1')).rejects.toThrow(QueueUnavailable);
    await until('noticed', () => !leader.healthy() && !w.healthy());
    await server.restart();
    await until('healthy again', () => leader.healthy() && w.healthy());
    await leader.feedShards(QUEUE, 'u1', [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 10);
    await until('all done', async () => (await leader.readJob('u1')).doneShards === 10);
    expect((await leader.readJob('u1')).counts.completed).toBe(10);
  });

  test('down from the start or for long: every call fails in bounded time, and works once it is there', async () => {
    const server = await redisServer();
    await server.kill('SIGKILL');
    const leader = operator(server.url);
    const w = worker(server.url, 'w');
    w.serveTasks(async () => undefined, 2);
    const calls: [string, () => Promise<unknown>][] = [
      ['putJob', () => leader.putJob(descriptor('u1'), FIRST)],
      ['removeJob', () => leader.removeJob('u1', QUEUE, FIRST)],
      ['readJob', () => leader.readJob('u1')],
      ['queueTask', () => leader.queueTask({ kind: 'index', uid: 'u1' })],
      ['feedShards', () => leader.feedShards(QUEUE, 'u1', [1], 1)],
      ['withdrawShards', () => leader.withdrawShards(QUEUE, 'u1')],
      ['putPlan', () => leader.putPlan(plan(1), 1_000, FIRST)],
      ['readCapacity', () => leader.readCapacity([ADDRESS])],
      ['readHolds', () => leader.readHolds(QUEUE)],
      ['liveWorkers', () => leader.liveWorkers()],
      ['grantsPaused', () => leader.grantsPaused()],
      ['job', () => w.job('u1')],
      ['shardDone', () => w.shardDone('u1', 1, shardDone(1))],
      ['isShardDone', () => w.isShardDone('u1', 1)],
      ['report', () => w.report('u1', { cleaned: true })],
      ['putHold', () => w.putHold(QUEUE, { scope: '*', reason: 'r', message: 'm', since: 1 }, 10)],
      ['clearHold', () => w.clearHold(QUEUE, '*')],
    ];
    const outcomes = await Promise.all(
      calls.map(async ([name, call]) =>
        call().then(
          () => `${name} resolved`,
          (error: unknown) =>
            error instanceof QueueUnavailable ? 'QueueUnavailable' : `${name}: ${String(error)}`,
        ),
      ),
    );
    expect(new Set(outcomes)).toEqual(new Set(['QueueUnavailable']));
    expect(w.places.take([POOL])).toBeUndefined();
    expect([leader.healthy(), w.healthy()]).toEqual([false, false]);
    await server.restart();
    await until('works', async () => {
      await leader.putJob(descriptor('u1'), FIRST).catch(() => undefined);
      return leader.healthy() && (await leader.readJob('u1')).descriptor !== undefined;
    });
  });

  test('a wrong password is named, and the password is not', async () => {
    const server = await redisServer();
    await rawClient(server.url).config('SET', 'requirepass', 'right');
    const leader = operator(`redis://:not-this-one@127.0.0.1:${server.port}`);
    const error = await leader.readJob('u1').catch((reason: unknown) => reason);
    expect(error).toMatchObject({ code: 'Unreachable' });
    expect(String(error)).toMatch(/WRONGPASS/);
    expect(String(error)).not.toMatch(/not-this-one/);
  });

  test('out of memory: writes are refused with a clear error, places are still renewed and results still count', async () => {
    const { url } = await redisServer();
    const raw = rawClient(url);
    const leader = operator(url);
    const w = worker(url, 'w');
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(2), 60_000, FIRST);
    const greedy = new Greedy(w, 2);
    await until('taken', () => greedy.held.size === 2);
    await raw.config('SET', 'maxmemory', '1');
    await expect(leader.putJob(descriptor('u2'), FIRST)).rejects.toMatchObject({ code: 'OutOfMemory' });
    await expect(leader.feedShards(QUEUE, 'u1', [0], 1)).rejects.toMatchObject({ code: 'OutOfMemory' });
    await expect(leader.queueTask({ kind: 'index', uid: 'u1' })).rejects.toMatchObject({
      code: 'OutOfMemory',
    });
    await w.shardDone('u1', 3, shardDone(5));
    const since = performance.now();
    await until(
      'longer than a lease',
      () => performance.now() - since > 1.5 * shortSettings.leaseMilliseconds,
    );
    expect([greedy.held.size, greedy.lost]).toEqual([2, 0]);
    await raw.config('SET', 'maxmemory', '0');
    await leader.feedShards(QUEUE, 'u1', [0], 1);
    expect((await leader.readJob('u1')).counts.completed).toBe(5);
  });

  test('silent (no FIN, nothing answered): noticed, and everything reconnects (fusillade#325)', async () => {
    const server = await redisServer();
    const wire = new SilentWire(server.port);
    const url = await wire.listen();
    cleanups.push(() => wire.close());
    const leader = operator(url);
    const w = worker(url, 'w');
    const runs: number[] = [];
    w.serveShards(async ({ uid, shard }: ShardTask) => {
      runs.push(shard);
      await w.shardDone(uid, shard, shardDone(1));
    }, 2);
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(2), 60_000, FIRST);
    await leader.feedShards(QUEUE, 'u1', [0], 1);
    await until('first shard', () => runs.length === 1);
    wire.silence();
    await expect(leader.readJob('u1')).rejects.toThrow(QueueUnavailable);
    await until('noticed', () => !leader.healthy() && !w.healthy());
    wire.speak();
    await until('back', () => leader.healthy() && w.healthy());
    await leader.feedShards(QUEUE, 'u1', [1], 1);
    await until('second shard', () => runs.includes(1));
  });
});

describe('shards of dead and of slow workers', () => {
  test('a killed worker leaves its open shards to others, however often it happens (R1, R3)', async () => {
    const { url } = await redisServer();
    const leader = operator(url);
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(2), 60_000, FIRST);
    await leader.feedShards(QUEUE, 'u1', [0, 1, 2], 10);
    for (let death = 0; death < 3; death += 1) {
      const doomed = workerProcess(url, `doomed-${death}`, 0);
      await until('it holds them all', () => doomed.opened.length === 3);
      doomed.child.kill('SIGKILL');
    }
    const runs: number[] = [];
    const w = worker(url, 'survivor');
    w.serveShards(async ({ uid, shard }) => {
      runs.push(shard);
      await w.shardDone(uid, shard, shardDone(1));
    }, 2);
    await until('all done', async () => (await leader.readJob('u1')).doneShards === 3);
    expect(runs.sort()).toEqual([0, 1, 2]);
  });

  test('a worker whose lock is lost is told so before the shard runs again in the same process (bullmq#3183)', async () => {
    const { url } = await redisServer();
    const raw = rawClient(url);
    const leader = operator(url);
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(2), 60_000, FIRST);
    const reasons: unknown[] = [];
    let open = 0;
    let most = 0;
    let runs = 0;
    worker(url, 'w').serveShards(async (_task, signal) => {
      runs += 1;
      most = Math.max(most, (open += 1));
      if (runs === 1) {
        await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()));
        reasons.push(signal.reason);
      }
      open -= 1;
    }, 2);
    await leader.feedShards(QUEUE, 'u1', [0], 10);
    await until('running', () => runs === 1);
    await raw.set(`{tg}:bull:tg-shards-${QUEUE}:u1-0:lock`, 'someone else', 'PX', 300);
    await until('ran again', () => runs === 2);
    expect(reasons[0]).toBeInstanceOf(LockLost);
    expect(most).toBe(1);
  });

  test('closing waits for open entries, warns them shortly before the end, and ends in time', async () => {
    const { url } = await redisServer();
    const leader = operator(url);
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(2), 60_000, FIRST);
    const w = worker(url, 'w');
    const gate = new Gate();
    const ends: string[] = [];
    let open = 0;
    w.serveShards(async ({ shard }, signal) => {
      open += 1;
      if (shard === 0) {
        await gate.opened;
        ends.push('finished');
      } else {
        await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve()));
        ends.push('warned');
      }
    }, 4);
    await leader.feedShards(QUEUE, 'u1', [0, 1], 10);
    await until('open', () => open === 2);
    const closing = w.close(1_000);
    gate.open();
    await closing;
    expect(ends).toEqual(['finished', 'warned']);
    const raw = rawClient(url);
    expect(await raw.keys('*:u1-*')).toEqual([]);
  });

  test('closing ends in time although a handler never ends and Redis is gone', async () => {
    const server = await redisServer();
    const leader = operator(server.url);
    await leader.putJob(descriptor('u1'), FIRST);
    await leader.putPlan(plan(2), 60_000, FIRST);
    const w = worker(server.url, 'w');
    let running = false;
    w.serveShards(async () => {
      running = true;
      await new Promise(() => undefined);
    }, 1);
    await leader.feedShards(QUEUE, 'u1', [0], 10);
    await until('running', () => running);
    await server.kill('SIGKILL');
    await w.close(100);
    await leader.close();
  });
});

/** A TCP relay that can fall silent: connections stay open, and not a byte passes. */
class SilentWire {
  readonly #target: number;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #silent = false;

  constructor(target: number) {
    this.#target = target;
    this.#server = createServer((near) => {
      const far = connect(this.#target, '127.0.0.1');
      for (const socket of [near, far]) {
        this.#sockets.add(socket);
        socket.on('error', () => undefined);
        socket.on('close', () => this.#sockets.delete(socket));
      }
      near.on('data', (bytes) => this.#silent || far.write(bytes));
      far.on('data', (bytes) => this.#silent || near.write(bytes));
      near.on('close', () => far.destroy());
      far.on('close', () => near.destroy());
    });
  }

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    const address = this.#server.address();
    return `redis://127.0.0.1:${typeof address === 'object' ? address?.port : ''}`;
  }

  silence(): void {
    this.#silent = true;
  }

  speak(): void {
    this.#silent = false;
  }

  close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    return new Promise((resolve) => this.#server.close(() => resolve()));
  }
}
