/** Durations that the end-to-end tests shorten, so that waiting out a lease takes seconds. */
import type { Settings } from '../../hack/stack/tidegate.ts';

export const checkpointMilliseconds = 500;
const LEASE_MILLISECONDS = 4_000;
const LOCK_MILLISECONDS = 4_000;
const STALLED_MILLISECONDS = 1_000;

/** A process that is frozen this long has lost its places, its locks and its leadership. */
export const frozenPastMilliseconds =
  2 * Math.max(LEASE_MILLISECONDS, LOCK_MILLISECONDS) + STALLED_MILLISECONDS;

export const testSettings: Settings = {
  kube: { leaseDurationSeconds: 4, renewDeadlineMilliseconds: 2_500, retryMilliseconds: 400 },
  queue: {
    pollMilliseconds: 300,
    leaseMilliseconds: LEASE_MILLISECONDS,
    leaseMarginMilliseconds: 500,
    renewMilliseconds: 500,
    workerTtlMilliseconds: 3_000,
    progressMilliseconds: 500,
    lockMilliseconds: LOCK_MILLISECONDS,
    stalledMilliseconds: STALLED_MILLISECONDS,
    retryMilliseconds: 200,
    maxRetryMilliseconds: 3_000,
    watchdogMilliseconds: 5_000,
  },
  worker: {
    checkpointIntervalMilliseconds: checkpointMilliseconds,
    idleHandBackMilliseconds: 2_000,
    initialBusyMilliseconds: 200,
    maxBusyMilliseconds: 2_000,
    initialProbeMilliseconds: 300,
    maxProbeMilliseconds: 2_000,
    holdValidMilliseconds: 4_000,
    initialStoreRetryMilliseconds: 200,
    maxStoreRetryMilliseconds: 2_000,
    graceMilliseconds: 5_000,
  },
};
