import { afterEach, describe, expect, jest, test } from '@jest/globals';
import { ManualTime } from './testing/manual-time.ts';
import { backoffMilliseconds, longestTimeoutMilliseconds, pause, systemTimers } from './timers.ts';

describe('systemTimers', () => {
  afterEach(() => {
    jest.useRealTimers();
  });

  const tenYears = 10 * 365 * 86_400_000;

  test('waits ten years where setTimeout would fire at once (nodejs/node#4541, delay#57)', () => {
    jest.useFakeTimers();
    const run = jest.fn();
    systemTimers.after(tenYears, run);
    jest.advanceTimersByTime(tenYears - 1);
    expect(run).not.toHaveBeenCalled();
    jest.advanceTimersByTime(1);
    expect(run).toHaveBeenCalledTimes(1);
  });

  test('can be cancelled after the first of several steps', () => {
    jest.useFakeTimers();
    const run = jest.fn();
    const cancel = systemTimers.after(tenYears, run);
    jest.advanceTimersByTime(longestTimeoutMilliseconds + 1);
    cancel();
    expect(jest.getTimerCount()).toBe(0);
  });
});

describe('pause', () => {
  test('ends with the time', async () => {
    const time = new ManualTime();
    const ended = jest.fn();
    void pause(time, 100).then(ended);
    await time.advance(99);
    expect(ended).not.toHaveBeenCalled();
    await time.advance(1);
    expect(ended).toHaveBeenCalled();
  });

  test('ends with an abort, and leaves no timer behind', async () => {
    const time = new ManualTime();
    const controller = new AbortController();
    const paused = pause(time, 100, controller.signal);
    controller.abort();
    await paused;
    expect(time.pendingAlarms).toBe(0);
    await pause(time, 100, controller.signal);
  });
});

describe('backoffMilliseconds', () => {
  test.each([
    [1, 0, 50],
    [1, 1, 100],
    [4, 1, 800],
    [5, 1, 1_000],
    [10_000, 1, 1_000],
  ])('after %d failures with random %d is %d ms', (failures, random, expected) => {
    expect(backoffMilliseconds(failures, 100, 1_000, () => random)).toBe(expected);
  });
});
