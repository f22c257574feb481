/** What the parts of the decision share. Pure. */
import { FINALIZER } from '../../api/group.ts';
import type { InferenceBatchJob } from '../../api/inference-batch-job.ts';
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

/**
 * Whether nothing was ever asked of a worker for this job, so that neither S3 nor Redis holds anything of it. The
 * finalizer tells, being added before the first thing is asked; the rest is for the case that somebody took it away.
 */
export function neverStarted({ job, queue }: JobSnapshot): boolean {
  return !hasFinalizer(job) && queue?.descriptor === undefined && job.status?.indexedTime === undefined;
}

export const hasFinalizer = ({ metadata }: InferenceBatchJob): boolean =>
  metadata.finalizers?.includes(FINALIZER) === true;

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
