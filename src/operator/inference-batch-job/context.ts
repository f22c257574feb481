/** What the parts of the decision share. Pure. */
import { findCondition } from '../../kube/conditions.ts';
import { jsonEqual } from '../../kube/merge-patch.ts';
import type { JobDescriptor } from '../../queue/contract.ts';
import type { JobSettings } from '../settings.ts';
import { descriptorOf, type RunMode } from './descriptor.ts';
import type { JobPlan, JobSnapshot, Moment } from './snapshot.ts';
import { changeOf, type Status } from './status.ts';

export interface Context {
  snapshot: JobSnapshot;
  at: Moment;
  settings: JobSettings;
}

/** Reasons of condition Indexed from before any task of the job was queued. */
const BEFORE_THE_FIRST_TASK: readonly (string | undefined)[] = [
  undefined,
  'Pending',
  'Waiting',
  'SuspendedByUser',
];

/** Whether nothing was ever asked of a worker for this job, so that S3 holds nothing of it. */
export function neverStarted({ job, queue }: JobSnapshot): boolean {
  return (
    queue?.descriptor === undefined &&
    BEFORE_THE_FIRST_TASK.includes(findCondition(job.status?.conditions, 'Indexed')?.reason)
  );
}

export function everIndexed({ job, queue }: JobSnapshot): boolean {
  return job.status?.indexedTime !== undefined || queue?.index !== undefined;
}

/** The descriptor to write, if what Redis has of it (possibly nothing) differs. */
export function descriptorChange(
  { snapshot: { job, deployment, queue }, settings }: Context,
  run: RunMode,
): JobDescriptor | undefined {
  const wanted = descriptorOf(job, deployment, queue?.descriptor, run, settings.priority);
  return jsonEqual(queue?.descriptor, wanted) ? undefined : wanted;
}

/** The soonest of the alarms; undefined ones do not count. */
export function soonest(...alarms: readonly (number | undefined)[]): number | undefined {
  const set = alarms.filter((alarm) => alarm !== undefined);
  return set.length === 0 ? undefined : Math.max(0, Math.min(...set));
}

/** What to do about a wished status: transitions at once, progress when it is due, nothing when nothing changed. */
export function statusPart(
  { snapshot: { job, memory }, at, settings }: Context,
  draft: Status,
): { part: Pick<JobPlan, 'status'>; alarm: number | undefined } {
  const change = changeOf(job.status, draft);
  if (change === 'none') return { part: {}, alarm: undefined };
  if (change === 'transition') return { part: { status: { draft, urgent: true } }, alarm: undefined };
  const writtenAt = memory.progressWrittenAt ?? Number.NEGATIVE_INFINITY;
  const wait = writtenAt + settings.progressWriteMilliseconds - at.monotonic;
  if (wait > 0) return { part: {}, alarm: wait };
  return { part: { status: { draft, urgent: false } }, alarm: undefined };
}
