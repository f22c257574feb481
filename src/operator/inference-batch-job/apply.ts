/**
 * Carries out a plan. The only place that writes for a job: finalizer before anything elsewhere, queue before
 * status, status once, events after it, and the finalizer's removal last.
 */
import { FINALIZER } from '../../api/group.ts';
import type { InferenceBatchJob } from '../../api/inference-batch-job.ts';
import type { KubeClient, Recorder } from '../../kube/contract.ts';
import { applyStatusIfChanged } from '../../kube/patches.ts';
import type { FailPoint, Logger } from '../../observability/contract.ts';
import type { Metrics } from '../../observability/metrics.ts';
import { FencedOut, type Fence, type OperatorQueue, type QueueId } from '../../queue/contract.ts';
import { NotLeading } from '../leadership.ts';
import type { OwnWrites } from '../own-writes.ts';
import { jobs } from '../resources.ts';
import type { TokenBucket } from '../token-bucket.ts';
import { queueOf } from './descriptor.ts';
import type { JobPlan } from './snapshot.ts';

export interface JobTools {
  client: KubeClient;
  queue: OperatorQueue;
  recorder: Recorder;
  metrics: Metrics;
  logger: Logger;
  failPoint: FailPoint;
  /** Progress writes of all jobs together. */
  budget: TokenBucket;
  own: OwnWrites<InferenceBatchJob>;
  /** Throws NotLeading. */
  fence: () => Fence;
  /** Redis did not answer when a job should have been forgotten: to be done when it does. */
  forgetLater: (uid: string, queue: QueueId) => void;
  now: () => number;
  /** BullMQ priority of shards. */
  priority: number;
}

export interface Applied {
  object: InferenceBatchJob;
  statusWritten: boolean;
  /** Progress had to wait: the writes of all jobs together are at their limit. */
  statusDeferred: boolean;
}

/** @throws NotLeading, FencedOut, KubeError, or what the queue throws; the key is then worked on again. */
export async function apply(tools: JobTools, job: InferenceBatchJob, plan: JobPlan): Promise<Applied> {
  const withFinalizer = await addFinalizer(tools, job, plan);
  await applyToQueue(tools, job, plan);
  const applied = await applyStatus(tools, withFinalizer, plan);
  for (const { type, reason, message } of plan.events ?? []) {
    tools.recorder.event(applied.object, type, reason, message);
  }
  await letGo(tools, applied.object, plan);
  return applied;
}

async function addFinalizer(
  tools: JobTools,
  job: InferenceBatchJob,
  plan: JobPlan,
): Promise<InferenceBatchJob> {
  if (plan.addFinalizer !== true) return job;
  const patched = await patchFinalizers(tools, job, [...(job.metadata.finalizers ?? []), FINALIZER]);
  await tools.failPoint('operator.job.finalizer-added');
  return patched;
}

/** Bound to the version that was read: a leader that has been replaced, or someone else's finalizer, wins. */
async function patchFinalizers(
  tools: JobTools,
  job: InferenceBatchJob,
  finalizers: readonly string[],
): Promise<InferenceBatchJob> {
  tools.fence();
  const { namespace, name, uid, resourceVersion } = job.metadata;
  const patch = { metadata: { uid, resourceVersion, finalizers } };
  const patched = await tools.client.mergePatch(jobs, namespace, name, patch);
  tools.own.wrote(job, patched);
  return patched;
}

async function applyToQueue(tools: JobTools, job: InferenceBatchJob, plan: JobPlan): Promise<void> {
  const { queue, fence, failPoint } = tools;
  const uid = job.metadata.uid ?? '';
  const deployment = queueOf(job);
  if (plan.descriptor !== undefined) {
    await queue.putJob(plan.descriptor, fence());
    await failPoint('operator.job.described');
  }
  if (plan.withdraw === true) {
    fence();
    await queue.withdrawShards(deployment, uid);
    await failPoint('operator.job.withdrawn');
  }
  if (plan.markMissing !== undefined) await queue.markMissing(uid, [...plan.markMissing], fence());
  for (const report of plan.clear ?? []) {
    await queue.clearReport(uid, report, fence());
    await failPoint(`operator.job.${report}-cleared`);
  }
  for (const { task, delayMilliseconds } of plan.tasks ?? []) {
    fence();
    await queue.queueTask(task, delayMilliseconds);
    await failPoint(`operator.job.${task.kind}-queued`);
  }
  if (plan.feed !== undefined) {
    fence();
    await queue.feedShards(deployment, uid, plan.feed, tools.priority);
    await failPoint('operator.job.fed');
  }
}

async function applyStatus(tools: JobTools, job: InferenceBatchJob, plan: JobPlan): Promise<Applied> {
  const { status } = plan;
  if (status === undefined) return { object: job, statusWritten: false, statusDeferred: false };
  if (!status.urgent && !tools.budget.take()) {
    return { object: job, statusWritten: false, statusDeferred: true };
  }
  tools.fence();
  const ends = status.draft.completionTime !== undefined ? 'end' : 'status';
  await tools.failPoint(`operator.job.${ends}-writing`);
  const { written, object } = await applyStatusIfChanged(tools.client, jobs, job, status.draft);
  if (written) {
    tools.own.wrote(job, object);
    tools.metrics.statusWrites.inc({ kind: 'InferenceBatchJob' });
    await tools.failPoint(`operator.job.${ends}-written`);
  }
  return { object, statusWritten: written, statusDeferred: false };
}

async function letGo(tools: JobTools, job: InferenceBatchJob, plan: JobPlan): Promise<void> {
  const { namespace, name, uid = '', finalizers = [] } = job.metadata;
  if (plan.forget === true) await forget(tools, uid, queueOf(job));
  if (plan.leftBehind !== undefined) {
    const { prefix, why } = plan.leftBehind;
    tools.metrics.leaveBehind(prefix, tools.now());
    tools.logger.warn(`job leaves working objects behind: ${why}`, { job: uid, namespace, name, prefix });
  }
  if (plan.removeFinalizer === true) {
    await tools.failPoint('operator.job.finalizer-removing');
    await patchFinalizers(
      tools,
      job,
      finalizers.filter((each) => each !== FINALIZER),
    );
    await tools.failPoint('operator.job.finalizer-removed');
  }
  if (plan.deleteObject === true) {
    tools.fence();
    await tools.client.delete(jobs, namespace, name, { uid });
  }
}

/** Must not keep an object from going: what Redis still knows is removed later, or expires there. */
async function forget(tools: JobTools, uid: string, queue: QueueId): Promise<void> {
  try {
    await tools.queue.removeJob(uid, queue, tools.fence());
    await tools.failPoint('operator.job.forgotten');
  } catch (error) {
    if (error instanceof FencedOut || error instanceof NotLeading) throw error;
    tools.logger.warn('job not removed from Redis yet', { job: uid, error });
    tools.forgetLater(uid, queue);
  }
}
