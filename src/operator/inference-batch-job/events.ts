/** The events that tell a job's story: one for each transition that people care about, none for numbers. Pure. */
import type { InferenceBatchJobStatus } from '../../api/inference-batch-job.ts';
import { findCondition } from '../../kube/conditions.ts';
import { hasEnded } from './life.ts';
import type { EventDraft } from './snapshot.ts';

type Status = InferenceBatchJobStatus;
type Teller = (before: Status | undefined, after: Status) => EventDraft | undefined;

const condition = (status: Status | undefined, type: string) => findCondition(status?.conditions, type);

function becameTrue(before: Status | undefined, after: Status, type: string) {
  const now = condition(after, type);
  return now?.status === 'True' && condition(before, type)?.status !== 'True' ? now : undefined;
}

/** An obstacle: a condition that is False for a reason it did not have before. */
function newlyHindered(before: Status | undefined, after: Status, type: string) {
  const now = condition(after, type);
  if (now?.status !== 'False') return undefined;
  const old = condition(before, type);
  return old?.status === 'False' && old.reason === now.reason ? undefined : now;
}

const accepted: Teller = (before, after) => {
  const yes = becameTrue(before, after, 'Accepted');
  if (yes !== undefined) return { type: 'Normal', reason: 'Accepted', message: yes.message };
  const no = newlyHindered(before, after, 'Accepted');
  return no === undefined ? undefined : { type: 'Warning', reason: no.reason, message: no.message };
};

const QUIET_INDEX_REASONS = ['Pending', 'Indexing', 'Waiting', 'SuspendedByUser', 'Finished'];

const indexed: Teller = (before, after) => {
  const yes = becameTrue(before, after, 'Indexed');
  if (yes !== undefined) return { type: 'Normal', reason: 'Indexed', message: yes.message };
  const no = newlyHindered(before, after, 'Indexed');
  if (no === undefined || QUIET_INDEX_REASONS.includes(no.reason)) return undefined;
  return { type: 'Warning', reason: no.reason, message: no.message };
};

const suspended: Teller = (before, after) => {
  const was = condition(before, 'Suspended')?.status === 'True';
  const is = condition(after, 'Suspended')?.status === 'True';
  if (was === is || hasEnded(after)) return undefined;
  return is
    ? { type: 'Normal', reason: 'Suspended', message: 'No new line is started' }
    : { type: 'Normal', reason: 'Resumed', message: 'Lines are started again' };
};

/** What keeps lines from running and is worth a look by a person; waiting for a turn is not. */
const ENGINE_TROUBLE = [
  'NoReadyReplicas',
  'NoWorkers',
  'ConnectionRefused',
  'Unauthorized',
  'RouteNotFound',
  'ModelNotFound',
  'StorageUnavailable',
];

const running: Teller = (before, after) => {
  if (after.state === 'Running' && before?.state === 'Queued') {
    return { type: 'Normal', reason: 'Running', message: 'The first lines are running' };
  }
  const no = newlyHindered(before, after, 'Running');
  if (no === undefined || !ENGINE_TROUBLE.includes(no.reason) || after.state === 'Finalizing')
    return undefined;
  return { type: 'Warning', reason: no.reason, message: no.message };
};

const ended: Teller = (before, after) => {
  if (!hasEnded(after) || hasEnded(before)) return undefined;
  const complete = condition(after, 'Complete');
  if (complete?.status === 'True')
    return { type: 'Normal', reason: complete.reason, message: complete.message };
  const failed = condition(after, 'Failed');
  if (failed === undefined) return undefined;
  const type = failed.reason === 'Cancelled' ? 'Normal' : 'Warning';
  return { type, reason: failed.reason, message: failed.message };
};

const TELLERS: readonly Teller[] = [accepted, indexed, suspended, running, ended];

export function eventsOf(before: Status | undefined, after: Status): EventDraft[] {
  return TELLERS.flatMap((tell) => tell(before, after) ?? []);
}
