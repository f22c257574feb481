/**
 * The sum of places in use never exceeds the cap: the real script on a real Redis in virtual time, several ledgers,
 * and an adversary that loses, delays and repeats messages, freezes and kills workers, empties Redis and restarts it.
 */
import { afterAll, beforeAll, beforeEach, describe, expect, jest, test } from '@jest/globals';
import fc from 'fast-check';
import { Redis } from 'ioredis';
import { startRedis, type Redis as RedisServer } from '../../hack/stack/redis.ts';
import type { Place } from './contract.ts';
import { putPlan, negotiate } from './place-scripts.ts';
import { answersOf } from './places.ts';
import { PlaceLost, type PoolAnswer, type PoolRequest, ShareLedger } from './share-ledger.ts';
import { ManualClock } from './testing/fixtures.ts';

jest.setTimeout(60_000);

const LEASE = 1_000;
const MARGIN = 100;
const ADDRESS = 'http://e1';
const POOL = { address: ADDRESS };

let server: RedisServer;
let redis: Redis;

beforeAll(async () => {
  server = await startRedis();
  redis = new Redis(server.url);
});
beforeEach(async () => void (await redis.flushall()));
afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

/** The script as it is, but for the clock, which is a key. */
const inVirtualTime = (lua: string): string =>
  lua.replaceAll(
    "redis.call('TIME')",
    "{math.floor(redis.call('GET', 'time') / 1000), (redis.call('GET', 'time') % 1000) * 1000}",
  );
const negotiateLua = inVirtualTime(negotiate.lua);
const putPlanLua = inVirtualTime(putPlan.lua);

class World {
  readonly clock = new ManualClock();
  runId = 'run-1';
  workers: SimulatedWorker[] = [];
  #names = 0;
  #transitions = 0;

  newName(): string {
    return `w${(this.#names += 1)}`;
  }

  async tell(): Promise<void> {
    await redis.set('time', this.clock.monotonic());
  }

  async plan(cap: number): Promise<void> {
    await this.tell();
    const body = JSON.stringify({ cap, at: this.#transitions });
    this.#transitions += 1;
    const args = [this.#transitions, 'leader', body, `rev${this.#transitions}`, 1_000_000, LEASE, this.runId];
    await redis.eval(
      putPlanLua,
      3,
      'fence',
      'plan',
      'caps',
      ...args,
      `epoch${this.#transitions}`,
      'c',
      ADDRESS,
      cap,
    );
  }

  async negotiate(name: string, sequence: number, requests: readonly PoolRequest[]): Promise<PoolAnswer[]> {
    await this.tell();
    const keys = ['plan', 'caps'];
    const args: (string | number)[] = [name, LEASE, this.runId, sequence, 15_000];
    for (const { pool, want, keep, inUse } of requests) {
      if ('address' in pool) {
        keys.push(`pool:${pool.address}`, 'caps');
        args.push(pool.address, want, keep, inUse);
      } else {
        keys.push(`pool:${pool.job}`, `job:${pool.job}`);
        args.push('', want, keep, inUse);
      }
    }
    return answersOf(await redis.eval(negotiateLua, keys.length, ...keys, ...args));
  }

  /** In small steps, so that timers of workers that are not frozen run in time. */
  advance(milliseconds: number): void {
    for (let left = milliseconds; left > 0; left -= MARGIN / 2) {
      this.clock.advance(Math.min(left, MARGIN / 2));
      for (const worker of this.workers) if (!worker.frozen) worker.ledger.expire(this.clock.monotonic());
    }
  }

  /** Requests that run at the engine, but for those of workers frozen beyond their lease. */
  running(): number {
    const now = this.clock.monotonic();
    let sum = 0;
    for (const worker of this.workers) {
      if (worker.frozen && now >= worker.confirmedUntil) continue;
      sum += worker.places.length;
    }
    return sum;
  }
}

class SimulatedWorker {
  readonly ledger: ShareLedger;
  readonly name: string;
  readonly #world: World;
  frozen = false;
  places: Place[] = [];
  inFlight: { requests: PoolRequest[]; sentAt: number; answers: PoolAnswer[] } | undefined;
  late: { sequence: number; requests: PoolRequest[] }[] = [];
  confirmedUntil = 0;
  #sequence = 0;

  constructor(world: World) {
    this.#world = world;
    this.name = world.newName();
    const nothing = (): void => undefined;
    this.ledger = new ShareLedger({
      clock: world.clock,
      leaseMilliseconds: LEASE,
      marginMilliseconds: MARGIN,
      onFree: nothing,
      onUnmet: nothing,
      onSurplus: nothing,
    });
  }

  async send(): Promise<void> {
    if (this.inFlight !== undefined) return;
    const requests = this.ledger.request();
    const sentAt = this.#world.clock.monotonic();
    this.#sequence += 1;
    const answers = await this.#world.negotiate(this.name, this.#sequence, requests);
    this.inFlight = { requests, sentAt, answers };
  }

  /** Sent, given up, and still on its way. */
  sendLate(): void {
    if (this.inFlight !== undefined) return;
    this.#sequence += 1;
    this.late.push({ sequence: this.#sequence, requests: this.ledger.request() });
  }

  async arriveLate(): Promise<void> {
    const late = this.late.shift();
    if (late !== undefined) await this.#world.negotiate(this.name, late.sequence, late.requests);
  }

  deliver(): void {
    if (this.inFlight === undefined) return;
    const { requests, answers, sentAt } = this.inFlight;
    this.inFlight = undefined;
    this.ledger.settle(requests, answers, sentAt);
    this.confirmedUntil = Math.max(this.confirmedUntil, sentAt + LEASE - MARGIN);
  }

  lose(): void {
    this.inFlight = undefined;
  }

  take(): void {
    const place = this.ledger.take([POOL]);
    if (place === undefined) return;
    this.places.push(place);
    place.signal.addEventListener('abort', () => this.#drop(place));
  }

  release(at: number): void {
    const place = this.places[at % Math.max(1, this.places.length)];
    if (place === undefined) return;
    place.release();
    this.#drop(place);
  }

  async round(): Promise<void> {
    await this.send();
    this.deliver();
  }

  #drop(place: Place): void {
    this.places = this.places.filter((other) => other !== place);
  }
}

type Step =
  | { do: 'want'; worker: number; amount: number }
  | { do: 'take'; worker: number; times: number }
  | { do: 'release'; worker: number; at: number }
  | { do: 'send' | 'sendLate' | 'arriveLate' | 'deliver' | 'lose' | 'round'; worker: number }
  | { do: 'freeze' | 'crash'; worker: number }
  /** Wants much, negotiates, and takes all it can. */
  | { do: 'busy'; worker: number }
  | { do: 'wait'; milliseconds: number }
  | { do: 'flush' | 'plan' | 'restart' };

const WORKERS = 4;
const worker = fc.nat(WORKERS - 1);
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant('want' as const), worker, amount: fc.nat(12) }) },
  {
    weight: 8,
    arbitrary: fc.record({ do: fc.constant('take' as const), worker, times: fc.integer({ min: 1, max: 6 }) }),
  },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('release' as const), worker, at: fc.nat(20) }) },
  {
    weight: 10,
    arbitrary: fc.record({
      do: fc.constantFrom(
        'round' as const,
        'send' as const,
        'deliver' as const,
        'lose' as const,
        'sendLate' as const,
        'arriveLate' as const,
      ),
      worker,
    }),
  },
  { weight: 12, arbitrary: fc.record({ do: fc.constant('busy' as const), worker }) },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constantFrom('freeze' as const, 'freeze' as const, 'crash' as const),
      worker,
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      do: fc.constant('wait' as const),
      milliseconds: fc.integer({ min: 10, max: 700 }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constantFrom('flush' as const, 'plan' as const, 'plan' as const, 'restart' as const),
    }),
  },
);

describe('places', () => {
  test.each([1, 3, 10])(
    'are never given twice at cap %i, whatever happens, and are all given in fair shares once it is over',
    async (cap) => {
      await fc.assert(
        fc.asyncProperty(fc.array(step, { minLength: 20, maxLength: 120 }), async (steps) => {
          await redis.flushall();
          const world = new World();
          world.workers = Array.from({ length: WORKERS }, () => new SimulatedWorker(world));
          await world.plan(cap);
          world.advance(LEASE);
          let snapshot: { key: string; dump: Buffer | null }[] = [];
          const save = async (): Promise<void> => {
            const keys = (await redis.keys('*')).filter((key) => key !== 'time');
            snapshot = await Promise.all(
              keys.map(async (key) => ({ key, dump: await redis.dumpBuffer(key) })),
            );
          };
          // A restart finds what was on disk: the state of a few steps ago.
          const restore = async (): Promise<void> => {
            await redis.flushall();
            for (const { key, dump } of snapshot) {
              if (dump !== null) await redis.restore(key, 0, dump, 'REPLACE');
            }
          };
          for (const [at, action] of steps.entries()) {
            if (at % 4 === 0) await save();
            await perform(world, action, cap, restore);
            expect(world.running()).toBeLessThanOrEqual(cap);
          }
          await settles(world, cap);
        }),
        { numRuns: 30, seed: 20_261_130 },
      );
    },
    120_000,
  );

  async function perform(
    world: World,
    action: Step,
    cap: number,
    restore: () => Promise<void>,
  ): Promise<void> {
    if (action.do === 'wait') return world.advance(action.milliseconds);
    if (action.do === 'plan') return world.plan(cap);
    if (action.do === 'flush') return void (await redis.flushall());
    if (action.do === 'restart') {
      world.runId = `run-${world.newName()}`;
      return restore();
    }
    if (!('worker' in action)) return;
    const chosen = world.workers[action.worker] as SimulatedWorker;
    if (action.do === 'crash') {
      world.workers[action.worker] = new SimulatedWorker(world);
      return;
    }
    if (action.do === 'freeze') {
      chosen.frozen = !chosen.frozen;
      return;
    }
    if (chosen.frozen) return;
    if (action.do === 'want') chosen.ledger.setWant(POOL, action.amount);
    else if (action.do === 'take') for (let i = 0; i < action.times; i += 1) chosen.take();
    else if (action.do === 'release') chosen.release(action.at);
    else if (action.do === 'busy') {
      chosen.ledger.setWant(POOL, 12);
      await chosen.round();
      for (let i = 0; i < 12; i += 1) chosen.take();
    } else await chosen[action.do]();
  }

  async function settles(world: World, cap: number): Promise<void> {
    await world.plan(cap);
    for (const one of world.workers) {
      one.frozen = false;
      one.lose();
      one.ledger.expire(world.clock.monotonic());
      while (one.places.length > 0) one.release(0);
      one.ledger.setWant(POOL, cap);
    }
    for (let elapsed = 0; elapsed < 3 * LEASE; elapsed += 100) {
      world.advance(100);
      for (const one of world.workers) await one.round();
    }
    const shares = world.workers.map((one) => one.ledger.free(POOL));
    expect(shares.reduce((a, b) => a + b, 0)).toBe(cap);
    expect(Math.max(...shares) - Math.min(...shares)).toBeLessThanOrEqual(1);
  }
});

describe('one step after the other', () => {
  async function pair(cap: number): Promise<[World, SimulatedWorker, SimulatedWorker]> {
    const world = new World();
    await world.plan(cap);
    const [a, b] = [new SimulatedWorker(world), new SimulatedWorker(world)];
    world.workers = [a, b];
    return [world, a, b];
  }

  test('for one lease time after Redis came back empty only what is held is registered (issue 3, point 7)', async () => {
    const [world, a, b] = await pair(10);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 6);
    await a.round();
    for (let i = 0; i < 6; i += 1) a.take();
    await redis.flushall();
    b.ledger.setWant(POOL, 10);
    await b.round();
    expect(b.ledger.free(POOL)).toBe(0);
    await world.plan(10);
    for (let elapsed = 0; elapsed < LEASE - 200; elapsed += 100) {
      await a.round();
      await b.round();
      expect([a.places.length, b.ledger.free(POOL)]).toEqual([6, 0]);
      world.advance(100);
    }
    for (let i = 0; i < 5; i += 1) {
      world.advance(100);
      await a.round();
      await b.round();
    }
    expect([a.places.length, b.ledger.free(POOL)]).toEqual([6, 4]);
  });

  test('a worker frozen past its lease aborts what it started before it takes anything new', async () => {
    const [world, a, b] = await pair(4);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 4);
    await a.round();
    for (let i = 0; i < 4; i += 1) a.take();
    const [place] = a.places;
    a.frozen = true;
    world.advance(LEASE + 1);
    b.ledger.setWant(POOL, 4);
    await b.round();
    expect(b.ledger.free(POOL)).toBe(4);
    a.frozen = false;
    a.take();
    expect(a.places).toEqual([]);
    expect(place?.signal.aborted).toBe(true);
    expect(place?.signal.reason).toBeInstanceOf(PlaceLost);
    a.release(0);
    expect(b.ledger.free(POOL)).toBe(4);
  });

  test('an answer that waited in the socket of a frozen worker grants nothing', async () => {
    const [world, a] = await pair(4);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 4);
    await a.send();
    a.frozen = true;
    world.advance(LEASE + 1);
    a.frozen = false;
    a.deliver();
    expect(a.ledger.free(POOL)).toBe(0);
  });

  test('a message that arrives after a newer one changes nothing', async () => {
    const [world, a, b] = await pair(4);
    world.advance(LEASE);
    a.sendLate();
    a.ledger.setWant(POOL, 4);
    await a.round();
    for (let i = 0; i < 4; i += 1) a.take();
    await a.arriveLate();
    b.ledger.setWant(POOL, 4);
    await b.round();
    expect([a.places.length, b.ledger.free(POOL)]).toEqual([4, 0]);
  });

  test('a restart that lost the last grants gives nothing twice', async () => {
    const [world, a, b] = await pair(4);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 4);
    await a.round();
    for (let i = 0; i < 4; i += 1) a.take();
    // What was not on disk yet is gone, the plan is still there, and the server is another process.
    await redis.del(`pool:${ADDRESS}`);
    world.runId = 'run-2';
    b.ledger.setWant(POOL, 4);
    await b.round();
    expect(b.ledger.free(POOL)).toBe(0);
    await a.round();
    expect(a.places.length).toBe(4);
  });

  test('what was offered back is not used, although the answer was lost', async () => {
    const [world, a, b] = await pair(4);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 4);
    await a.round();
    a.ledger.setWant(POOL, 1);
    await a.send();
    a.lose();
    b.ledger.setWant(POOL, 4);
    await b.round();
    for (let i = 0; i < 4; i += 1) {
      a.take();
      b.take();
    }
    expect([a.places.length, b.places.length]).toEqual([1, 3]);
  });

  test('a worker that Redis forgot ends the newest of what it may no longer hold', async () => {
    const [world, a, b] = await pair(4);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 4);
    await a.round();
    for (let i = 0; i < 4; i += 1) a.take();
    const [first] = a.places;
    await redis.del(`pool:${ADDRESS}`);
    b.ledger.setWant(POOL, 3);
    await b.round();
    for (let i = 0; i < 3; i += 1) b.take();
    await a.round();
    expect(a.places).toEqual([first]);
    expect(world.running()).toBe(4);
  });

  test('small wants are met whole, the rest is shared evenly', async () => {
    const world = new World();
    await world.plan(10);
    world.advance(LEASE);
    world.workers = Array.from({ length: 3 }, () => new SimulatedWorker(world));
    const wants = [2, 50, 50];
    for (let round = 0; round < 3; round += 1) {
      for (const [at, one] of world.workers.entries()) {
        one.ledger.setWant(POOL, wants[at] ?? 0);
        await one.round();
      }
    }
    expect(world.workers.map((one) => one.ledger.free(POOL))).toEqual([2, 4, 4]);
  });

  test('at a cap of one each worker gets its turn', async () => {
    const [world, a, b] = await pair(1);
    world.advance(LEASE);
    const served = [0, 0];
    for (let second = 0; second < 90; second += 1) {
      for (const [at, one] of [a, b].entries()) {
        one.ledger.setWant(POOL, 5);
        await one.round();
        one.take();
        served[at] = (served[at] ?? 0) + one.places.length;
        one.release(0);
      }
      world.advance(500);
    }
    expect(Math.min(...served)).toBeGreaterThan(20);
  });

  test('those above their share shrink as their requests end, and nothing running is cut', async () => {
    const [world, a, b] = await pair(8);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 8);
    await a.round();
    for (let i = 0; i < 8; i += 1) a.take();
    b.ledger.setWant(POOL, 8);
    await b.round();
    await a.round();
    await b.round();
    expect([a.places.length, b.ledger.free(POOL)]).toEqual([8, 0]);
    for (let i = 0; i < 3; i += 1) a.release(0);
    a.take();
    expect(a.places.length).toBe(5);
    await a.round();
    await b.round();
    expect(b.ledger.free(POOL)).toBe(3);
    a.release(0);
    await a.round();
    await b.round();
    expect([a.places.length, a.ledger.free(POOL), b.ledger.free(POOL)]).toEqual([4, 0, 4]);
  });

  test('an address that left the plan gets nothing new, what runs may finish', async () => {
    const [world, a] = await pair(4);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 4);
    await a.round();
    a.take();
    a.take();
    await redis.del('caps');
    for (let i = 0; i < 3; i += 1) {
      world.advance(LEASE / 2);
      await a.round();
    }
    a.take();
    expect(a.places.length).toBe(2);
    a.release(0);
    await a.round();
    expect(a.ledger.free(POOL)).toBe(0);
  });

  test('a plan that ran out grants nothing new', async () => {
    const [world, a] = await pair(4);
    world.advance(1_000_001);
    a.ledger.setWant(POOL, 4);
    await a.round();
    expect(a.ledger.free(POOL)).toBe(0);
    await world.plan(4);
    await a.round();
    expect(a.ledger.free(POOL)).toBe(4);
  });

  test.each([
    ['raising', 2, 6, 6],
    ['lowering', 6, 2, 2],
  ])('%s maxInFlight acts at the next negotiation and cuts nothing', async (_how, before, after, total) => {
    const [world, a, b] = await pair(100);
    world.advance(LEASE);
    const job = { job: 'j1' };
    await redis.hset('job:j1', 'descriptor', '{}', 'maxInFlight', before);
    const places: Place[] = [];
    const pump = async (): Promise<void> => {
      for (const one of [a, b]) {
        one.ledger.setWant(POOL, 50);
        one.ledger.setWant(job, 50);
        await one.round();
        for (
          let place = one.ledger.take([POOL, job]);
          place !== undefined;
          place = one.ledger.take([POOL, job])
        )
          places.push(place);
      }
    };
    for (let i = 0; i < 4; i += 1) await pump();
    expect(places.length).toBe(before);
    await redis.hset('job:j1', 'maxInFlight', after);
    for (let i = 0; i < 4; i += 1) await pump();
    expect(places.length).toBe(Math.max(before, after));
    expect(places.every((place) => !place.signal.aborted)).toBe(true);
    for (const place of places.splice(0)) place.release();
    for (let i = 0; i < 4; i += 1) await pump();
    expect(places.length).toBe(total);
  });

  test('a job without maxInFlight is counted and not limited, and a cap that comes counts what runs', async () => {
    const [world, a, b] = await pair(100);
    world.advance(LEASE);
    const job = { job: 'j1' };
    await redis.hset('job:j1', 'descriptor', '{}', 'maxInFlight', '');
    for (const one of [a, b]) {
      one.ledger.setWant(POOL, 50);
      one.ledger.setWant(job, 50);
      await one.round();
    }
    const places = Array.from({ length: 20 }, () => a.ledger.take([POOL, job]));
    expect(places.every((place) => place !== undefined)).toBe(true);
    await redis.hset('job:j1', 'maxInFlight', 25);
    await a.round();
    await b.round();
    expect(a.ledger.free(job) + b.ledger.free(job)).toBeLessThanOrEqual(5);
    expect(places.every((place) => place?.signal.aborted === false)).toBe(true);
  });

  test('one of two pools without a place takes from neither', async () => {
    const [world, a] = await pair(4);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 4);
    await a.round();
    expect(a.ledger.take([POOL, { job: 'unknown' }])).toBeUndefined();
    expect(a.ledger.free(POOL)).toBe(4);
  });

  test('releasing twice, or after the abort, frees one place', async () => {
    const [world, a] = await pair(2);
    world.advance(LEASE);
    a.ledger.setWant(POOL, 2);
    await a.round();
    const place = a.ledger.take([POOL]);
    place?.release();
    place?.release();
    expect(a.ledger.free(POOL)).toBe(2);
  });
});
