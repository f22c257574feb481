import type { KubeError } from './contract.ts';
import type { NoAnswerReason } from './failures.ts';
import { backoffMilliseconds } from './timers.ts';

/**
 * Whether a call may be sent again after `error`. `repeatable` calls end the same when carried out twice (reads,
 * patches, deletes); others are repeated only when the server cannot have acted on them.
 */
export function mayRetry(error: KubeError, repeatable: boolean): boolean {
  switch (error.status) {
    case 0:
      switch (error.reason as NoAnswerReason) {
        case 'ConnectionRefused':
          return true;
        case 'ConnectionLost':
        case 'Timeout':
          return repeatable;
        case 'Aborted':
          return false;
      }
      return false;
    case 429: // Flow control turns requests away before they are carried out.
      return true;
    case 500:
    case 502:
    case 503:
    case 504:
      return repeatable;
    default:
      return false;
  }
}

/** Milliseconds to wait before the next attempt: what the server asked for, or a jittered back-off if that is more. */
export function retryDelayMilliseconds(error: KubeError, attempt: number, random: () => number): number {
  const told = (error.retryAfterSeconds ?? 0) * 1000;
  return Math.max(told, backoffMilliseconds(attempt, 200, 5_000, random));
}
