/** A job that has ended: clean up once, then leave it alone until its time to live is over. */
import { descriptorChange, hasFinalizer, soonest, type Context } from './context.ts';
import { workPrefixOf } from './descriptor.ts';
import { keepsUnpublished } from './ending.ts';
import { retryOf } from './retry.ts';
import type { JobPlan } from './snapshot.ts';

export function decideFinished(context: Context): JobPlan {
  const cleanUp = cleanUpPart(context);
  const timeToLive = timeToLivePart(context);
  const requeue = soonest(cleanUp.requeueAfterMilliseconds, timeToLive.requeueAfterMilliseconds);
  return {
    ...cleanUp,
    ...timeToLive,
    ...observedPart(context),
    ...(requeue === undefined ? {} : { requeueAfterMilliseconds: requeue }),
    memory: cleanUp.memory,
  };
}

/** A finished job takes changes of its time to live; its status says that they were seen, and changes in nothing else. */
function observedPart({ snapshot: { job } }: Context): Pick<JobPlan, 'status'> {
  const { status } = job;
  const generation = job.metadata.generation ?? 0;
  if (status === undefined || status.observedGeneration === generation) return {};
  return { status: { draft: { ...status, observedGeneration: generation }, urgent: true } };
}

function timeToLivePart({
  snapshot: { job },
  at,
}: Context): Pick<JobPlan, 'deleteObject' | 'requeueAfterMilliseconds'> {
  const seconds = job.spec.ttlSecondsAfterFinished;
  const completed = Date.parse(job.status?.completionTime ?? '');
  if (seconds === undefined || Number.isNaN(completed)) return {};
  const left = completed + seconds * 1_000 - at.now;
  return left <= 0 ? { deleteObject: true } : { requeueAfterMilliseconds: left };
}

function cleanUpPart(context: Context): JobPlan {
  const { snapshot, at, settings } = context;
  const { job, queue, memory } = snapshot;
  if (!hasFinalizer(job)) return { memory };
  if (keepsUnpublished(job.status)) {
    const why = 'they hold results that could not be published';
    const leftBehind = { prefix: workPrefixOf(job), why };
    return { forget: true, removeFinalizer: true, leftBehind, memory };
  }
  if (queue === undefined) return { requeueAfterMilliseconds: settings.retryCeilingMilliseconds, memory };
  if (queue.cleaned) return { forget: true, removeFinalizer: true, memory };

  const descriptor = descriptorChange(context, 'Stop');
  const plan: JobPlan = {
    ...(descriptor === undefined ? {} : { descriptor }),
    memory: { ...memory, fed: undefined },
  };
  const cleanup = {
    task: { kind: 'cleanup' as const, uid: job.metadata.uid ?? '', publishFirst: false },
    delayMilliseconds: 0,
  };
  if (queue.problem?.task !== 'cleanup') {
    return { ...plan, tasks: [cleanup], requeueAfterMilliseconds: settings.retryCeilingMilliseconds };
  }
  const retry = retryOf(queue.problem, memory, at, settings);
  if (retry.inMilliseconds > 0) return { ...plan, requeueAfterMilliseconds: retry.inMilliseconds };
  return {
    ...plan,
    clear: ['problem'],
    tasks: [cleanup],
    requeueAfterMilliseconds: settings.retryCeilingMilliseconds,
    memory: { ...plan.memory, retries: retry.retries },
  };
}
