/** How shards and tasks become BullMQ entries. */
import type { JobsOptions } from 'bullmq';
import type { QueueSettings } from './settings.ts';

/** BullMQ runs entries without a priority before all others, and accepts negative ones in silence. */
export const MIN_PRIORITY = 1;
export const MAX_PRIORITY = 2_097_151;

/** Events of a queue that BullMQ keeps. Nobody reads them; the default is 10,000. */
export const EVENTS_KEPT = 50;

const CAPPED_BACKOFF = 'capped';

/** Entries never give up by count: a job ends by its window, not because Redis or S3 were down for long. */
const UNLIMITED_ATTEMPTS = 1_000_000_000;

/** Workers that die may not fail an entry either (BullMQ counts stalls for its whole life). */
export const MAX_STALLS = 1_000_000_000;

export function entryOptions(jobId: string, priority: number, delayMilliseconds = 0): JobsOptions {
  return {
    jobId,
    priority: checkPriority(priority),
    ...(delayMilliseconds > 0 ? { delay: Math.ceil(delayMilliseconds) } : {}),
    attempts: UNLIMITED_ATTEMPTS,
    backoff: { type: CAPPED_BACKOFF },
    removeOnComplete: true,
    removeOnFail: true,
    stackTraceLimit: 0,
  };
}

/** Throws RangeError naming what is allowed. */
export function checkPriority(priority: number): number {
  if (Number.isInteger(priority) && priority >= MIN_PRIORITY && priority <= MAX_PRIORITY) return priority;
  throw new RangeError(
    `priority ${priority} is not allowed: an integer from ${MIN_PRIORITY} (first) to ${MAX_PRIORITY}`,
  );
}

/** Exponential, capped, with jitter so that what failed together does not return together. */
export function retryPause(attemptsMade: number, settings: QueueSettings, random: () => number): number {
  const pause = settings.retryMilliseconds * 2 ** Math.min(Math.max(attemptsMade, 1) - 1, 20);
  return Math.ceil(Math.min(pause, settings.maxRetryMilliseconds) * (0.75 + 0.25 * random()));
}
