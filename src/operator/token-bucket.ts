import type { Clock } from '../observability/contract.ts';

/** A budget of so many writes a second for all objects together, with a second's worth of burst. */
export interface TokenBucket {
  /** Takes one if there is one. */
  take(): boolean;
}

export function createTokenBucket(perSecond: number, clock: Pick<Clock, 'monotonic'>): TokenBucket {
  let tokens = perSecond;
  let filledAt = clock.monotonic();
  return {
    take: () => {
      const now = clock.monotonic();
      tokens = Math.min(perSecond, tokens + ((now - filledAt) / 1_000) * perSecond);
      filledAt = now;
      if (tokens < 1) return false;
      tokens -= 1;
      return true;
    },
  };
}
