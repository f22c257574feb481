/** A job whose object is being deleted: stop it, let workers clean up, and let it go within bounds whatever is down. */
import { findCondition } from '../../kube/conditions.ts';
import { descriptorChange, everIndexed, hasFinalizer, soonest, type Context } from './context.ts';
import { workPrefixOf } from './descriptor.ts';
import { keepsUnpublished } from './ending.ts';
import { hasEnded } from './life.ts';
import { retryOf } from './retry.ts';
import type { JobPlan } from './snapshot.ts';

/** Secrets of a namespace that is being deleted go away at any moment: retries are quick, the bound is short. */
const RETRY_CEILING_MILLISECONDS = 4_000;

/** A deletion this many times older than its bound has outlived earlier leaders; the next gives it less time. */
const LATE_BOUNDS = 4;

/** So that an operator that is restarted again and again does not begin the whole time anew each time. */
function boundOf({ snapshot: { job }, at, settings }: Context): number {
  const { deletionMilliseconds, lateDeletionMilliseconds } = settings;
  const age = at.now - Date.parse(job.metadata.deletionTimestamp ?? '');
  return age > LATE_BOUNDS * deletionMilliseconds ? lateDeletionMilliseconds : deletionMilliseconds;
}

/** What kept the input from being read keeps clean-up from it, too: a person who deletes a typo need not wait. */
function neverHadStore({ snapshot }: Context): boolean {
  const { problem } = snapshot.queue ?? {};
  if (problem?.task !== 'cleanup' || everIndexed(snapshot)) return false;
  return findCondition(snapshot.job.status?.conditions, 'Indexed')?.reason === problem.reason;
}

export function decideDeletion(context: Context): JobPlan {
  const { snapshot, at, settings } = context;
  const { job, queue, memory } = snapshot;
  // What others still hold the object for is theirs.
  if (!hasFinalizer(job)) return { memory };
  const seenAt = memory.deletionSeenAt ?? at.monotonic;
  const remembered = { ...memory, deletionSeenAt: seenAt };
  const letGo: JobPlan = { forget: true, removeFinalizer: true, memory: remembered };
  const leave = (why: string): JobPlan => ({ ...letGo, leftBehind: { prefix: workPrefixOf(job), why } });
  if (queue?.cleaned === true) return letGo;
  if (keepsUnpublished(job.status)) return leave('they hold results that could not be published');
  const left = seenAt + boundOf(context) - at.monotonic;
  if (left <= 0) return leave('clean-up took too long');
  if (neverHadStore(context)) return leave(`the store could never be opened (${queue?.problem?.reason})`);
  if (queue === undefined) return { requeueAfterMilliseconds: Math.min(left, 1_000), memory: remembered };

  const descriptor = descriptorChange(context, 'Gone');
  const plan: JobPlan = {
    ...(descriptor === undefined ? {} : { descriptor }),
    ...(memory.withdrawn === true && memory.deletionSeenAt !== undefined ? {} : { withdraw: true }),
    memory: { ...remembered, withdrawn: true, fed: undefined },
  };
  const { problem } = queue;
  const cleanup = {
    task: {
      kind: 'cleanup' as const,
      uid: job.metadata.uid ?? '',
      // A finished job has published everything.
      publishFirst: !hasEnded(job.status),
    },
    delayMilliseconds: 0,
  };
  if (problem?.task !== 'cleanup') {
    return { ...plan, tasks: [cleanup], requeueAfterMilliseconds: Math.min(left, 5_000) };
  }
  const retry = retryOf(problem, memory, at, {
    retryInitialMilliseconds: settings.retryInitialMilliseconds,
    retryCeilingMilliseconds: Math.min(settings.retryCeilingMilliseconds, RETRY_CEILING_MILLISECONDS),
  });
  if (retry.inMilliseconds > 0) {
    return { ...plan, requeueAfterMilliseconds: soonest(left, retry.inMilliseconds) ?? left };
  }
  return {
    ...plan,
    clear: ['problem'],
    tasks: [cleanup],
    requeueAfterMilliseconds: Math.min(left, 5_000),
    memory: { ...plan.memory, retries: retry.retries },
  };
}
