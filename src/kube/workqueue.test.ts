import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { KubeError } from './contract.ts';
import { manualRuntime, settle } from './testing/manual-time.ts';
import { KeyQueue, type WorkQueueObservation } from './workqueue.ts';

const backoff = { initialMilliseconds: 100, ceilingMilliseconds: 10_000 };

/** A queue whose handlers end when the test says so. */
function steppedQueue(workers: number) {
  const { time, runtime, lines } = manualRuntime();
  const seen: WorkQueueObservation[] = [];
  const queue = new KeyQueue({ name: 'jobs', runtime, backoff, observe: (one) => seen.push(one) });
  const started: string[] = [];
  const running = new Map<string, PromiseWithResolvers<void>>();
  let overlaps = 0;
  queue.run((key) => {
    if (running.has(key)) overlaps += 1;
    started.push(key);
    const end = Promise.withResolvers<void>();
    running.set(key, end);
    return end.promise.finally(() => running.delete(key));
  }, workers);
  const finish = async (key: string, error?: Error): Promise<void> => {
    if (error === undefined) running.get(key)?.resolve();
    else running.get(key)?.reject(error);
    await settle();
  };
  return { queue, time, lines, seen, started, running, finish, overlaps: () => overlaps };
}

describe('a work queue', () => {
  test('hands out a waiting key once, however often it was added', async () => {
    const { queue, started } = steppedQueue(4);
    queue.add('a');
    queue.add('a');
    queue.add('b');
    expect(queue.length).toBe(2);
    await settle();
    expect(started).toEqual(['a', 'b']);
  });

  test('hands out a key again that was added while it was handled, but not before its handler ended', async () => {
    const { queue, started, finish } = steppedQueue(4);
    queue.add('a');
    await settle();
    queue.add('a');
    queue.add('a');
    await settle();
    expect(started).toEqual(['a']);
    await finish('a');
    expect(started).toEqual(['a', 'a']);
    await finish('a');
    expect(started).toEqual(['a', 'a']);
  });

  test('runs no more handlers at a time than it has workers, in the order of adding', async () => {
    const { queue, started, running, finish } = steppedQueue(2);
    for (const key of ['a', 'b', 'c', 'd']) queue.add(key);
    await settle();
    expect(started).toEqual(['a', 'b']);
    await finish('b');
    expect(started).toEqual(['a', 'b', 'c']);
    expect(running.size).toBe(2);
    expect(queue.length).toBe(1);
  });

  test('adds a delayed key when its time has come, the earliest of several', async () => {
    const { queue, started, time } = steppedQueue(1);
    queue.addAfter('a', 5_000);
    queue.addAfter('a', 2_000);
    queue.addAfter('a', 9_000);
    expect(queue.delayed).toBe(1);
    await time.advance(1_999);
    expect(started).toEqual([]);
    await time.advance(1);
    expect(started).toEqual(['a']);
    expect(queue.delayed).toBe(0);
  });

  test.each([0, -5, Number.NaN])('adds at once with a delay of %d', async (delay) => {
    const { queue, started } = steppedQueue(1);
    queue.addAfter('a', delay);
    await settle();
    expect(started).toEqual(['a']);
  });

  test('keeps a delay of ten years for ten years (nodejs/node#4541)', async () => {
    const { queue, started, time } = steppedQueue(1);
    const tenYears = 10 * 365 * 86_400_000;
    queue.addAfter('a', tenYears);
    queue.addAfter('soon', 1_000);
    await time.advance(tenYears - 1);
    expect(started).toEqual(['soon']);
    await time.advance(1);
    expect(started).toEqual(['soon']); // one worker, still with "soon"
    expect(queue.length).toBe(1);
  });

  test('repeats a failing key more and more slowly, up to the ceiling, until it succeeds', async () => {
    const { queue, started, time, finish, lines, seen } = steppedQueue(1);
    queue.add('a');
    await settle();
    for (const delay of [75, 150, 300, 600, 1_200, 2_400, 4_800, 7_500, 7_500]) {
      const before = started.length;
      await finish('a', new Error('no luck'));
      await time.advance(delay - 1);
      expect(started).toHaveLength(before);
      await time.advance(1);
      expect(started).toHaveLength(before + 1);
    }
    await finish('a');
    queue.add('a');
    await settle();
    await finish('a', new Error('again'));
    await time.advance(75);
    expect(started).toHaveLength(12);
    expect(lines[0]).toMatchObject({ level: 'warn', fields: { queue: 'jobs', key: 'a', error: 'no luck' } });
    expect(seen.filter(({ outcome }) => outcome === 'failed')).toHaveLength(10);
  });

  test('waits as long as the API server asked for', async () => {
    const { queue, started, time, finish } = steppedQueue(1);
    queue.add('a');
    await settle();
    await finish('a', new KubeError(429, 'TooManyRequests', 'slow down', { retryAfterSeconds: 7 }));
    await time.advance(6_999);
    expect(started).toHaveLength(1);
    await time.advance(1);
    expect(started).toHaveLength(2);
  });

  test('keeps counting when a handler that succeeds asks for its own slow repetition', async () => {
    const { time, runtime } = manualRuntime();
    const queue = new KeyQueue({ name: 'jobs', runtime, backoff });
    const at: number[] = [];
    queue.run(async (key) => {
      at.push(time.monotonic());
      if (at.length < 4) queue.addRateLimited(key);
    }, 1);
    queue.add('a');
    await time.advance(10_000);
    expect(at.slice(1).map((moment, index) => moment - (at[index] ?? 0))).toEqual([75, 150, 300]);
  });

  test('takes a handler that throws before its first await like one that rejects', async () => {
    const { time, runtime } = manualRuntime();
    const queue = new KeyQueue({ name: 'jobs', runtime, backoff });
    let calls = 0;
    queue.run(() => {
      calls += 1;
      throw new Error('at once');
    }, 1);
    queue.add('a');
    await time.advance(75);
    expect(calls).toBe(2);
  });

  test('lets timers and sockets run between the handlers of a long queue', async () => {
    const { runtime } = manualRuntime();
    const queue = new KeyQueue({ name: 'jobs', runtime });
    let handled = 0;
    queue.run(async () => {
      handled += 1;
    }, 1);
    for (let index = 0; index < 5_000; index += 1) queue.add(`key-${index}`);
    await new Promise((resolve) => setTimeout(resolve, 0));
    expect(handled).toBeLessThan(5_000);
    while (handled < 5_000) await settle();
    expect(queue.length).toBe(0);
  });

  test('drains: hands out nothing more and ends with the running handlers', async () => {
    const { queue, started, finish, time } = steppedQueue(1);
    queue.add('a');
    queue.add('b');
    queue.addAfter('c', 10);
    await settle();
    let drained = false;
    const draining = queue.drain().then(() => {
      drained = true;
    });
    queue.add('d');
    queue.addAfter('e', 1);
    await time.advance(1_000);
    expect(drained).toBe(false);
    await finish('a', new Error('interrupted'));
    await draining;
    await time.advance(100_000);
    expect(started).toEqual(['a']);
    expect([queue.length, queue.delayed, time.pendingAlarms]).toEqual([0, 0, 0]);
    await queue.drain();
  });

  test('refuses to run twice, and without workers', () => {
    const { queue } = steppedQueue(1);
    expect(() => {
      queue.run(() => Promise.resolve(), 1);
    }).toThrow('already runs');
    const { runtime } = manualRuntime();
    expect(() => {
      new KeyQueue({ name: 'jobs', runtime }).run(() => Promise.resolve(), 0);
    }).toThrow('workers is 0, must be a whole number from 1');
  });
});

describe('for any order of adds, delays, ends and failures', () => {
  const key = fc.constantFrom('a', 'b', 'c', 'd');
  const step = fc.oneof(
    fc.record({ do: fc.constant('add' as const), key }),
    fc.record({ do: fc.constant('addAfter' as const), key, delay: fc.integer({ min: 1, max: 50 }) }),
    fc.record({ do: fc.constant('finish' as const), key }),
    fc.record({ do: fc.constant('fail' as const), key }),
    fc.record({ do: fc.constant('advance' as const), by: fc.integer({ min: 1, max: 200 }) }),
  );

  /** What must hold, as plainly as it can be said. */
  class Model {
    waiting: string[] = [];
    again = new Set<string>();
    running = new Set<string>();
    due = new Map<string, number>();
    failures = new Map<string, number>();
    now = 0;
    started: string[] = [];
    readonly workers: number;
    constructor(workers: number) {
      this.workers = workers;
    }
    add(name: string): void {
      if (this.running.has(name)) this.again.add(name);
      else if (!this.waiting.includes(name)) this.waiting.push(name);
    }
    delay(name: string, by: number): void {
      this.due.set(name, Math.min(this.due.get(name) ?? Infinity, this.now + by));
    }
    handOut(): void {
      while (this.running.size < this.workers) {
        const next = this.waiting.shift();
        if (next === undefined) return;
        this.running.add(next);
        this.started.push(next);
      }
    }
    end(name: string, failed: boolean): void {
      if (!this.running.delete(name)) return;
      if (failed) {
        const count = (this.failures.get(name) ?? 0) + 1;
        this.failures.set(name, count);
        this.delay(name, Math.min(10_000, 100 * 2 ** (count - 1)) * 0.75);
      } else {
        this.failures.delete(name);
      }
      if (this.again.delete(name)) this.waiting.push(name);
    }
    advance(by: number): void {
      const until = this.now + by;
      for (;;) {
        const next = [...this.due].filter(([, at]) => at <= until).sort(([, a], [, b]) => a - b)[0];
        if (next === undefined) break;
        this.due.delete(next[0]);
        this.now = next[1];
        this.add(next[0]);
        this.handOut();
      }
      this.now = until;
    }
  }

  test('the queue does what the model does, and never handles a key twice at once', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { maxLength: 30 }),
        fc.integer({ min: 1, max: 3 }),
        async (steps, workers) => {
          const { queue, time, started, running, finish, overlaps } = steppedQueue(workers);
          const model = new Model(workers);
          for (const move of steps) {
            // No two steps at one instant: keys that fall due together may come in either order.
            await time.advance(1 / 1024);
            model.advance(1 / 1024);
            switch (move.do) {
              case 'add':
                queue.add(move.key);
                model.add(move.key);
                break;
              case 'addAfter':
                queue.addAfter(move.key, move.delay);
                model.delay(move.key, move.delay);
                break;
              case 'finish':
              case 'fail':
                await finish(move.key, move.do === 'fail' ? new Error('failed') : undefined);
                model.end(move.key, move.do === 'fail');
                break;
              case 'advance':
                await time.advance(move.by);
                model.advance(move.by);
                break;
            }
            await settle();
            model.handOut();
            expect(started).toEqual(model.started);
            expect(new Set(running.keys())).toEqual(model.running);
            expect([queue.length, queue.delayed]).toEqual([model.waiting.length, model.due.size]);
          }
          expect(overlaps()).toBe(0);
        },
      ),
      { numRuns: 150 },
    );
  });
});
