import { describe, expect, test } from '@jest/globals';
import { MemoryQueue } from '../testing/memory-queue.ts';
import { createPlanWriter, differs } from './plan-writer.ts';

const plan = (cap: number) => [{ queue: 'a.m', replicas: [{ address: 'http://1', cap }] }];

function bench() {
  const queue = new MemoryQueue();
  const time = { now: 0 };
  const writer = createPlanWriter({
    queue,
    fence: () => ({ transitions: 1, leaderUID: 'me' }),
    clock: { monotonic: () => time.now },
    validMilliseconds: 600_000,
    renewMilliseconds: 60_000,
  });
  return { queue, time, writer };
}

describe('the plan in Redis', () => {
  test('is written once while it stays the same, and again on change', async () => {
    const { queue, writer } = bench();
    await Promise.all([writer.ensure(plan(1)), writer.ensure(plan(1)), writer.ensure(plan(1))]);
    expect(queue.plansWritten).toBe(1);
    await writer.ensure(plan(2));
    expect(queue.plan).toEqual(plan(2));
  });

  test('is renewed long before it expires', async () => {
    const { queue, time, writer } = bench();
    for (time.now = 0; time.now <= 600_000; time.now += 2_000) await writer.ensure(plan(1));
    expect(queue.plansWritten).toBe(11);
  });

  test('is written again after it was lost, and after a write that failed', async () => {
    const { queue, writer } = bench();
    await writer.ensure(plan(1));
    queue.lose();
    writer.lost();
    queue.up = false;
    await expect(writer.ensure(plan(1))).rejects.toThrow('QueueUnavailable');
    queue.up = true;
    await writer.ensure(plan(1));
    expect(queue.plan).toEqual(plan(1));
  });

  test('is missed when an address has another cap there, and not while nothing is known of it', () => {
    const known = (cap: number) => (address: string) => ({ address, cap, granted: 0, inFlight: 0 });
    expect(differs(plan(4), known(4))).toBe(false);
    expect(differs(plan(4), known(0))).toBe(true);
    expect(differs(plan(4), () => undefined)).toBe(false);
  });
});
