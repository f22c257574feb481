/** The states of a job and the moves between them: the one table that everything else is checked against. */
import type { InferenceBatchJobStatus, JobState } from '../../api/inference-batch-job.ts';

/**
 * From each state, where a job may go next. Terminal states have no way out. Every end goes through Finalizing, where
 * its cause is on record before anything acts on it. Finalizing goes back only when a job that was thought complete
 * turns out to miss results.
 */
export const TRANSITIONS: Readonly<Record<JobState, readonly JobState[]>> = {
  Pending: ['Validating', 'Queued', 'Throttled', 'Running', 'Suspended', 'Finalizing'],
  Validating: ['Pending', 'Queued', 'Throttled', 'Running', 'Suspended', 'Finalizing'],
  Queued: ['Running', 'Throttled', 'Suspended', 'Finalizing'],
  Running: ['Throttled', 'Suspended', 'Finalizing'],
  Throttled: ['Queued', 'Running', 'Suspended', 'Finalizing'],
  Suspended: ['Pending', 'Validating', 'Queued', 'Throttled', 'Running', 'Finalizing'],
  Finalizing: ['Completed', 'Cancelled', 'Expired', 'Failed', 'Queued', 'Throttled', 'Running', 'Suspended'],
  Completed: [],
  Cancelled: [],
  Expired: [],
  Failed: [],
};

export const canMove = (from: JobState, to: JobState): boolean =>
  from === to || TRANSITIONS[from].includes(to);

export const isTerminalState = (state: JobState): boolean => TRANSITIONS[state].length === 0;

/** A new object has no state before the operator wrote one. */
export const stateOf = (status: InferenceBatchJobStatus | undefined): JobState => status?.state ?? 'Pending';

export const hasEnded = (status: InferenceBatchJobStatus | undefined): boolean =>
  status?.completionTime !== undefined || isTerminalState(stateOf(status));
