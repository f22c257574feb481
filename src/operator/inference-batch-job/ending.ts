/**
 * How a job ends. The cause is decided once, written into the status (state Finalizing, condition Running) before
 * anything acts on it, and read back from there: a leader that comes later, or a Redis that lost everything, cannot
 * make two different ends of one job. Pure.
 */
import type { InferenceBatchJob, JobReason, JobState } from '../../api/inference-batch-job.ts';
import { findCondition } from '../../kube/conditions.ts';
import type { IndexReport, JobState as QueueState, StopCause } from '../../queue/contract.ts';
import { windowEnd } from './descriptor.ts';

export type Ending = { kind: 'Complete'; message: string } | (StopCause & { message: string });

/** The reason that condition Running carries while a job is Finalizing; `Finalizing` stands for Complete. */
export function reasonOf(ending: Ending): string {
  switch (ending.kind) {
    case 'Complete':
      return 'Finalizing';
    case 'Cancelled':
      return 'Cancelled';
    case 'Expired':
      return 'WindowExpired';
    case 'Failed':
      return ending.reason;
  }
}

export function terminalStateOf(ending: Ending): JobState {
  return ending.kind === 'Complete' ? 'Completed' : ending.kind;
}

/** The end that is on record, if there is one. */
export function recordedEnding(status: InferenceBatchJob['status']): Ending | undefined {
  if (status?.state !== 'Finalizing') return undefined;
  const running = findCondition(status.conditions, 'Running');
  const message = running?.message ?? '';
  const reason = running?.reason ?? 'Finalizing';
  switch (reason) {
    case 'Finalizing':
      return { kind: 'Complete', message };
    case 'Cancelled':
      return { kind: 'Cancelled', message };
    case 'WindowExpired':
      return { kind: 'Expired', message };
    default:
      return { kind: 'Failed', reason, message };
  }
}

/** The reason of condition Running of an ended job whose last results only its working objects hold. */
export const UNPUBLISHED = 'ResultsNotPublished' satisfies JobReason;

/** Clean-up would then remove results that are nowhere else. */
export function keepsUnpublished(status: InferenceBatchJob['status']): boolean {
  return findCondition(status?.conditions, 'Running')?.reason === UNPUBLISHED;
}

export interface EndingInput {
  job: InferenceBatchJob;
  queue: QueueState | undefined;
  now: number;
}

const failed = (reason: JobReason, message: string): Ending => ({ kind: 'Failed', reason, message });

type Cause = (input: EndingInput) => Ending | undefined;

/** Failed lines known so far; invalid ones fail as soon as their shard is done, and are known before. */
function knownFailed(index: IndexReport, queue: QueueState): number {
  return Math.max(queue.counts.failed, index.invalid);
}

function overThreshold({ job, queue }: EndingInput): Ending | undefined {
  const index = queue?.index;
  if (queue === undefined || index === undefined || index.total === 0) return undefined;
  const allowed = job.spec.failurePolicy.maxFailedPercent;
  const failedLines = knownFailed(index, queue);
  if (failedLines * 100 <= allowed * index.total) return undefined;
  return failed(
    'FailureThreshold',
    `${failedLines} of ${index.total} lines failed, and failurePolicy.maxFailedPercent allows ${allowed} %`,
  );
}

const allDone: Cause = (input) => {
  const index = input.queue?.index;
  if (input.queue === undefined || index === undefined || index.total === 0) return undefined;
  if (rejectedInput(input) !== undefined || overThreshold(input) !== undefined) return undefined;
  if (input.queue.doneShards < index.shards) return undefined;
  return { kind: 'Complete', message: 'every line has its record; the last ones are being published' };
};

const cancelled: Cause = ({ job }) =>
  job.spec.cancel ? { kind: 'Cancelled', message: 'spec.cancel was set' } : undefined;

const expired: Cause = ({ job, now }) =>
  now >= windowEnd(job)
    ? {
        kind: 'Expired',
        message: `the completion window of ${job.spec.completionWindowSeconds} s is over`,
      }
    : undefined;

/** Clean-up is not part of the job's end, and finalising reports are judged where the end is carried out. */
const hopeless: Cause = ({ queue }) => {
  const problem = queue?.problem;
  if (problem === undefined || problem.retryable) return undefined;
  if (problem.task === 'cleanup' || problem.task === 'finalize') return undefined;
  return { kind: 'Failed', reason: conditionReason(problem.reason), message: problem.message };
};

const NAMED_LINES = 10;

function rejectedInput({ job, queue }: EndingInput): Ending | undefined {
  const index = queue?.index;
  if (index === undefined) return undefined;
  if (index.total === 0) return failed('EmptyInput', 'the input has no line that is not blank');
  if (job.spec.input.invalidLines !== 'Fail' || index.invalid === 0) return undefined;
  const named = index.firstInvalid
    .slice(0, NAMED_LINES)
    .map(({ key, line, error }) => `${key} line ${line}: ${error.code}`)
    .join('; ');
  return failed(
    'InvalidInput',
    `${index.invalid} of ${index.total} lines are invalid and input.invalidLines is Fail: ${named}`,
  );
}

/** First match counts. A job whose lines have all ended is complete, whatever else became due meanwhile. */
const CAUSES: readonly Cause[] = [allDone, cancelled, expired, hopeless, rejectedInput, overThreshold];

/** The end that is due now, if one is. */
export function dueEnding(input: EndingInput): Ending | undefined {
  for (const cause of CAUSES) {
    const ending = cause(input);
    if (ending !== undefined) return ending;
  }
  return undefined;
}

/** Reasons come from workers; one that Kubernetes would refuse must not keep a status from being written. */
export function conditionReason(reason: string): string {
  return /^[A-Z][A-Za-z0-9]{0,127}$/.test(reason) ? reason : 'InternalError';
}
