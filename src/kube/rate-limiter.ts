import type { Clock } from '../observability/contract.ts';
import { pause, type Timers } from './timers.ts';

export interface RateLimit {
  /** Zero or less: no limit. */
  perSecond: number;
  burst: number;
}

/** A token bucket whose waiters go in the order they came, as client-go's client-side limit. */
export class RateLimiter {
  readonly #limit: RateLimit;
  readonly #clock: Clock;
  readonly #timers: Timers;
  #tokens: number;
  #filledAt: number;

  constructor(limit: RateLimit, clock: Clock, timers: Timers) {
    this.#limit = limit;
    this.#clock = clock;
    this.#timers = timers;
    this.#tokens = limit.burst;
    this.#filledAt = clock.monotonic();
  }

  /** Resolves when the call may go, or when `signal` aborts. */
  async take(signal?: AbortSignal): Promise<void> {
    const { perSecond, burst } = this.#limit;
    if (perSecond <= 0) return;
    const now = this.#clock.monotonic();
    this.#tokens = Math.min(burst, this.#tokens + ((now - this.#filledAt) / 1000) * perSecond);
    this.#filledAt = now;
    this.#tokens -= 1;
    // Below zero the token is borrowed from the future, which keeps the order without a queue.
    if (this.#tokens < 0) await pause(this.#timers, (-this.#tokens / perSecond) * 1000, signal);
  }
}
