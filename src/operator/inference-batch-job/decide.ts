/**
 * The life of an InferenceBatchJob as one pure function: what is known → what to do. It may be called with any part
 * of what Redis knew missing and any number of times with the same snapshot; it converges.
 */
import type { Context } from './context.ts';
import { decideDeletion } from './deletion.ts';
import { carryOutEnding } from './end.ts';
import { dueEnding, recordedEnding } from './ending.ts';
import { decideFinished } from './finished.ts';
import { hasEnded } from './life.ts';
import { decideLive } from './live.ts';
import type { JobPlan, JobSnapshot, Moment } from './snapshot.ts';
import type { JobSettings } from '../settings.ts';

export function decide(snapshot: JobSnapshot, at: Moment, settings: JobSettings): JobPlan {
  const context: Context = { snapshot, at, settings };
  const { job, queue } = snapshot;
  if (job.metadata.deletionTimestamp !== undefined) return decideDeletion(context);
  if (hasEnded(job.status)) return decideFinished(context);
  const recorded = recordedEnding(job.status);
  if (recorded !== undefined) return carryOutEnding(context, recorded, true);
  const due = dueEnding({ job, queue, now: at.now });
  if (due !== undefined) return carryOutEnding(context, due, false);
  return decideLive(context);
}
