import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import type { Place, PoolId, Places } from '../../queue/contract.ts';
import { ByteBudget } from './byte-budget.ts';
import { type DispatchableRun, Dispatcher } from './dispatcher.ts';

/** Places of one worker with fixed shares; what the real ones negotiate, without Redis. */
class FixedPlaces implements Places {
  readonly wants = new Map<string, number>();
  readonly #free = new Map<string, number>();
  #listener: () => void = () => undefined;
  constructor(shares: Record<string, number>) {
    for (const [key, share] of Object.entries(shares)) this.#free.set(key, share);
  }
  take(pools: readonly PoolId[]): Place | undefined {
    if (pools.some((pool) => this.free(pool) <= 0)) return undefined;
    for (const pool of pools) this.#free.set(name(pool), this.free(pool) - 1);
    return {
      signal: new AbortController().signal,
      release: () => {
        for (const pool of pools) this.#free.set(name(pool), this.free(pool) + 1);
        this.#listener();
      },
    };
  }
  free(pool: PoolId): number {
    return this.#free.get(name(pool)) ?? ('job' in pool ? Infinity : 0);
  }
  setWant(pool: PoolId, want: number): void {
    this.wants.set(name(pool), want);
  }
  onFree(listener: () => void): () => void {
    this.#listener = listener;
    return () => undefined;
  }
}
const name = (pool: PoolId): string => ('address' in pool ? pool.address : pool.job);

class FakeRun implements DispatchableRun {
  readonly queue = 'serving.llama';
  readonly sent: { address: string; place: Place }[] = [];
  readonly jobUID: string;
  ready: number;
  readonly jobPool: PoolId;
  readonly shard: { shard: number };
  readonly #log: string[];
  constructor(jobUID: string, ready: number, log: string[], shard = 0) {
    this.shard = { shard };
    this.jobUID = jobUID;
    this.ready = ready;
    this.#log = log;
    this.jobPool = { job: jobUID };
  }
  get inFlight(): number {
    return this.sent.length;
  }
  start(address: string, place: Place): void {
    this.ready -= 1;
    this.sent.push({ address, place });
    this.#log.push(this.jobUID);
  }
  finishAll(): void {
    for (const { place } of this.sent.splice(0)) place.release();
  }
}

const pass = (): Promise<void> => new Promise((resolve) => setImmediate(() => setImmediate(resolve)));

describe('dispatcher', () => {
  let log: string[];
  let held: Set<string>;
  let budget: ByteBudget;
  let dispatchers: Dispatcher[];
  beforeEach(() => {
    log = [];
    held = new Set();
    budget = new ByteBudget(1_000);
    dispatchers = [];
  });
  afterEach(() => {
    for (const dispatcher of dispatchers) dispatcher.stop();
  });
  const dispatcher = (places: Places, addresses: string[]): Dispatcher => {
    const made = new Dispatcher({
      places,
      plan: (queue) => ({ queue, replicas: addresses.map((address) => ({ address, cap: 100 })) }),
      isHeld: (_, address) => held.has(address),
      isJobHeld: (_, uid) => held.has(uid),
      budget,
      clock: { now: () => Date.now(), monotonic: () => performance.now() },
    });
    dispatchers.push(made);
    return made;
  };

  test('jobs take turns, whatever number of shards each has open', async () => {
    const made = dispatcher(new FixedPlaces({ a: 8 }), ['a']);
    for (let i = 0; i < 5; i++) made.add(new FakeRun('large', 100, log));
    made.add(new FakeRun('small', 100, log));
    await pass();
    expect(log.filter((uid) => uid === 'small')).toHaveLength(4);
    expect(log.filter((uid) => uid === 'large')).toHaveLength(4);
  });

  test('the earlier shards of a job go first, whichever was opened first', async () => {
    const made = dispatcher(new FixedPlaces({ a: 5 }), ['a']);
    const [third, first, second] = [3, 1, 2].map((shard) => new FakeRun('job', 2, log, shard));
    for (const run of [third, first, second]) if (run !== undefined) made.add(run);
    await pass();
    expect([first, second, third].map((run) => run?.sent.length)).toEqual([2, 2, 1]);
  });

  test('a line goes to the open replica with most free places', async () => {
    const made = dispatcher(new FixedPlaces({ a: 2, b: 4 }), ['a', 'b']);
    const run = new FakeRun('job', 4, log);
    made.add(run);
    await pass();
    expect(run.sent.map(({ address }) => address).sort()).toEqual(['a', 'b', 'b', 'b']);
  });

  test('held replicas and held jobs get nothing, and want nothing', async () => {
    const places = new FixedPlaces({ a: 4, b: 4 });
    const made = dispatcher(places, ['a', 'b']);
    held.add('a').add('stuck');
    const stuck = new FakeRun('stuck', 10, log);
    const run = new FakeRun('job', 10, log);
    made.add(stuck);
    made.add(run);
    await pass();
    expect(stuck.sent).toHaveLength(0);
    expect(run.sent.map(({ address }) => address)).toEqual(['b', 'b', 'b', 'b']);
    expect(places.wants.get('a')).toBeUndefined();
    expect(places.wants.get('b')).toBe(20);
  });

  test('a job at its own cap does not stop the others', async () => {
    const made = dispatcher(new FixedPlaces({ a: 10, capped: 2 }), ['a']);
    const capped = new FakeRun('capped', 50, log);
    const other = new FakeRun('other', 50, log);
    made.add(capped);
    made.add(other);
    await pass();
    expect(capped.sent).toHaveLength(2);
    expect(other.sent).toHaveLength(8);
  });

  test('nothing leaves while the buffered bytes are at their limit', async () => {
    const made = dispatcher(new FixedPlaces({ a: 10 }), ['a']);
    budget.charge(1_000);
    const run = new FakeRun('job', 5, log);
    made.add(run);
    await pass();
    expect(run.sent).toHaveLength(0);
    budget.release(1_000);
    await pass();
    expect(run.sent).toHaveLength(5);
  });

  test('a replica that was busy is left alone for the time it asked for', async () => {
    const made = dispatcher(new FixedPlaces({ a: 10 }), ['a']);
    made.cool('a', 40);
    const run = new FakeRun('job', 1, log);
    made.add(run);
    await pass();
    expect(run.sent).toHaveLength(0);
    await new Promise<void>((resolve) => {
      const timer = setInterval(() => {
        if (run.sent.length === 0) return;
        clearInterval(timer);
        resolve();
      }, 5);
    });
  });

  test('released places are used again, and a removed run wants nothing', async () => {
    const places = new FixedPlaces({ a: 2 });
    const made = dispatcher(places, ['a']);
    const run = new FakeRun('job', 6, log);
    made.add(run);
    for (let round = 0; round < 3; round++) {
      await pass();
      run.finishAll();
    }
    await pass();
    expect(log).toHaveLength(6);
    made.remove(run);
    await pass();
    expect(places.wants.get('a')).toBe(0);
  });
});
