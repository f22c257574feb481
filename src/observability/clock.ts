import type { Clock } from './contract.ts';

/** The machine's own time. Everything that tests may want to move takes a Clock instead of reading this. */
export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
};
