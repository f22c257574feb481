/** gather → decide → apply for one job, and what is remembered between two looks. */
import type { InferenceBatchJob } from '../../api/inference-batch-job.ts';
import { KubeError, type Store } from '../../kube/contract.ts';
import type { Clock } from '../../observability/contract.ts';
import { jobs } from '../resources.ts';
import type { JobSettings } from '../settings.ts';
import { apply, type JobTools } from './apply.ts';
import { decide } from './decide.ts';
import { queueOf } from './descriptor.ts';
import { gather, needsQueue, type JobSources } from './gather.ts';
import { EMPTY_MEMORY, type JobMemory } from './snapshot.ts';

/** How soon progress that found no budget tries again. */
const DEFERRED_MILLISECONDS = 1_000;
/** How soon a write that met a newer version is decided anew. */
const CONFLICT_MILLISECONDS = 50;

export interface JobReconciler {
  /** @returns milliseconds after which to look again, if at all. */
  reconcile(key: string): Promise<number | undefined>;
  /** The object is gone, whoever let it go. */
  gone(job: InferenceBatchJob): void;
  /** Jobs that Redis should know, by UID; the canary looks for them. */
  described(): readonly string[];
  /** Counts anew how many jobs are being fed. */
  countFed(): void;
}

export interface JobReconcilerOptions {
  store: Store<InferenceBatchJob>;
  sources: JobSources;
  tools: JobTools;
  clock: Clock;
  settings: JobSettings;
}

export function createJobReconciler(options: JobReconcilerOptions): JobReconciler {
  const { store, sources, tools, clock, settings } = options;
  const memories = new Map<string, JobMemory>();
  const known = new Set<string>();
  let fedJobs = 0;

  async function reconcile(key: string): Promise<number | undefined> {
    const cached = store.get(key);
    if (cached === undefined) return undefined;
    const job = tools.own.latest(cached);
    const uid = job.metadata.uid ?? '';
    const memory = memories.get(uid) ?? EMPTY_MEMORY;
    const snapshot = await gather(sources, job, memory, fedJobs);
    if (snapshot.queue?.descriptor !== undefined) known.add(uid);
    const at = { now: clock.now(), monotonic: clock.monotonic() };
    const plan = decide(snapshot, at, settings);
    // Before anything is tried: what a failed attempt has seen, such as the first sight of a deletion, stays seen.
    remember(job, {
      ...memory,
      deletionSeenAt: plan.memory.deletionSeenAt,
      stoppedAt: plan.memory.stoppedAt,
    });
    // Before it is gone from Redis, or the canary would take it for lost.
    if (plan.forget === true) known.delete(uid);
    const applied = await apply(tools, job, plan);
    if (plan.descriptor !== undefined) known.add(uid);
    remember(applied.object, {
      ...plan.memory,
      ...(applied.statusWritten ? { progressWrittenAt: at.monotonic } : {}),
    });
    if (!applied.statusDeferred) return plan.requeueAfterMilliseconds;
    return Math.min(plan.requeueAfterMilliseconds ?? DEFERRED_MILLISECONDS, DEFERRED_MILLISECONDS);
  }

  /** Someone else wrote first: with the version that was just refused, the same write could never succeed. */
  async function readLive(key: string): Promise<number | undefined> {
    const cached = store.get(key);
    if (cached === undefined) return undefined;
    const { namespace, name, uid } = cached.metadata;
    const live = await tools.client.get(jobs, namespace, name);
    if (live?.metadata.uid !== uid || live === undefined) return undefined;
    tools.own.wrote(cached, live);
    return CONFLICT_MILLISECONDS;
  }

  function remember(job: InferenceBatchJob, memory: JobMemory): void {
    const uid = job.metadata.uid ?? '';
    if (needsQueue(job)) memories.set(uid, memory);
    else memories.delete(uid);
  }

  return {
    reconcile: async (key) => {
      try {
        return await reconcile(key);
      } catch (error) {
        // Gone, or replaced under the same name: the watch tells the rest.
        if (error instanceof KubeError && error.status === 404) return undefined;
        if (error instanceof KubeError && error.status === 409) return readLive(key);
        throw error;
      }
    },
    gone: (job) => {
      const uid = job.metadata.uid ?? '';
      memories.delete(uid);
      tools.own.forget(uid);
      // Somebody took the finalizer away: nobody will clean up, but workers must stop.
      if (known.delete(uid)) tools.forgetLater(uid, queueOf(job));
    },
    described: () => [...known],
    countFed: () => {
      fedJobs = 0;
      for (const memory of memories.values()) if (memory.fed !== undefined) fedJobs++;
    },
  };
}
