import type { Clock, Logger } from '../observability/contract.ts';

export type Cancel = () => void;

/** Alarms, injected beside the clock so that tests can move time by hand. */
export interface Timers {
  /** Calls `run` once after this many milliseconds, however many those are. */
  after(milliseconds: number, run: () => void): Cancel;
}

/** What every part of this room is built on. */
export interface Runtime {
  clock: Clock;
  timers: Timers;
  /** Uniform in [0, 1). */
  random: () => number;
  logger: Logger;
}

/** setTimeout takes a delay above this for 1 ms (nodejs/node#4541). */
export const longestTimeoutMilliseconds = 2 ** 31 - 1;

export const systemTimers: Timers = {
  after(milliseconds, run) {
    let timeout: NodeJS.Timeout;
    const arm = (left: number): void => {
      const step = Math.min(Math.max(0, left), longestTimeoutMilliseconds);
      timeout = setTimeout(() => {
        if (left > step) arm(left - step);
        else run();
      }, step);
    };
    arm(milliseconds);
    return () => {
      clearTimeout(timeout);
    };
  },
};

/** Resolves after the delay, or at once when `signal` aborts; never rejects: the caller looks at the signal. */
export function pause(timers: Timers, milliseconds: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const finish = (): void => {
      cancel();
      signal?.removeEventListener('abort', finish);
      resolve();
    };
    const cancel = timers.after(milliseconds, finish);
    signal?.addEventListener('abort', finish, { once: true });
  });
}

/** Doubles with each failure up to a ceiling; the upper half is random, so that clients do not return in step. */
export function backoffMilliseconds(
  failures: number,
  initialMilliseconds: number,
  ceilingMilliseconds: number,
  random: () => number,
): number {
  const full = Math.min(ceilingMilliseconds, initialMilliseconds * 2 ** Math.min(failures - 1, 40));
  return full * (0.5 + random() / 2);
}
