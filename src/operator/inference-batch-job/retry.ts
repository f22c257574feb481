/** When a task that reported a problem is tried again. Pure. */
import type { Problem } from '../../queue/contract.ts';
import type { JobMemory, Moment } from './snapshot.ts';

export interface RetrySettings {
  retryInitialMilliseconds: number;
  retryCeilingMilliseconds: number;
}

export interface Retry {
  /** 0: now. */
  inMilliseconds: number;
  /** To remember once it is tried again. */
  retries: NonNullable<JobMemory['retries']>;
}

/**
 * Doubles from attempt to attempt while the same task has the same problem. The report's own time decides, so that
 * a new leader neither hurries nor starts the wait again; a worker whose clock runs ahead delays by one back-off.
 */
export function retryOf(
  problem: Problem,
  memory: JobMemory,
  { now }: Moment,
  settings: RetrySettings,
): Retry {
  const key = `${problem.task}/${problem.reason}`;
  const before = memory.retries?.key === key ? memory.retries.count : 0;
  const backoff = Math.min(
    settings.retryCeilingMilliseconds,
    settings.retryInitialMilliseconds * 2 ** Math.min(before, 20),
  );
  const inMilliseconds = Math.min(backoff, Math.max(0, problem.at + backoff - now));
  return { inMilliseconds, retries: { key, count: before + 1 } };
}
