/** A job whose object is being deleted: stop it, let workers clean up, and let it go within bounds whatever is down. */
import { descriptorChange, hasFinalizer, soonest, type Context } from './context.ts';
import { workPrefixOf } from './descriptor.ts';
import { hasEnded } from './life.ts';
import { retryOf } from './retry.ts';
import type { JobPlan } from './snapshot.ts';

/** Secrets of a namespace that is being deleted go away at any moment: retries are quick, the bound is short. */
const RETRY_CEILING_MILLISECONDS = 4_000;

export function decideDeletion(context: Context): JobPlan {
  const { snapshot, at, settings } = context;
  const { job, queue, memory } = snapshot;
  // What others still hold the object for is theirs.
  if (!hasFinalizer(job)) return { memory };
  const seenAt = memory.deletionSeenAt ?? at.monotonic;
  const remembered = { ...memory, deletionSeenAt: seenAt };
  const letGo: JobPlan = { forget: true, removeFinalizer: true, memory: remembered };
  if (queue?.cleaned === true) return letGo;
  const left = seenAt + settings.deletionMilliseconds - at.monotonic;
  if (left <= 0) return { ...letGo, leftBehind: workPrefixOf(job) };
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
