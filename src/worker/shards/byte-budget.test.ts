import { describe, expect, test } from '@jest/globals';
import { ByteBudget } from './byte-budget.ts';

const never = new AbortController().signal;

describe('byte budget', () => {
  test('lets in what fits and makes the rest wait in order of arrival', async () => {
    const budget = new ByteBudget(100);
    await budget.acquire(60, never);
    const order: string[] = [];
    const second = budget.acquire(50, never).then(() => order.push('second'));
    const third = budget.acquire(10, never).then(() => order.push('third'));
    await Promise.resolve();
    expect(order).toEqual([]);
    budget.release(60);
    await Promise.all([second, third]);
    expect(order).toEqual(['second', 'third']);
    expect(budget.used).toBe(60);
  });

  test('lets one item larger than the limit in alone', async () => {
    const budget = new ByteBudget(100);
    await budget.acquire(10, never);
    let entered = false;
    const large = budget.acquire(1_000, never).then(() => (entered = true));
    await Promise.resolve();
    expect(entered).toBe(false);
    budget.release(10);
    await large;
    expect(budget.open).toBe(false);
    budget.release(1_000);
    expect(budget.open).toBe(true);
  });

  test('closes for new work while someone waits, so that a large item is not starved', async () => {
    const budget = new ByteBudget(100);
    await budget.acquire(50, never);
    const waiting = budget.acquire(80, never);
    expect(budget.open).toBe(false);
    budget.release(50);
    await waiting;
  });

  test('a waiter whose signal ends leaves the line and lets the next one in', async () => {
    const budget = new ByteBudget(100);
    await budget.acquire(90, never);
    const gone = new AbortController();
    const first = budget.acquire(100, gone.signal);
    const second = budget.acquire(10, never);
    gone.abort(new Error('stopped'));
    await expect(first).rejects.toThrow('stopped');
    await second;
    expect(budget.used).toBe(100);
  });

  test('tells listeners when bytes come free', () => {
    const budget = new ByteBudget(100);
    let calls = 0;
    const unsubscribe = budget.onRelease(() => (calls += 1));
    budget.charge(200);
    expect(budget.open).toBe(false);
    budget.release(200);
    unsubscribe();
    budget.release(0);
    expect(calls).toBe(1);
  });
});
