/** Control tasks of a job: run, report what came out, or report why not. */
import { jobLayout } from '../batch/layout.ts';
import type { Clock, FailPoint, Logger } from '../observability/contract.ts';
import type { JobDescriptor, Task, WorkerQueue } from '../queue/contract.ts';
import type { JobStores } from './credentials.ts';
import { type IndexDependencies, indexJob } from './index/index-task.ts';
import { problemOf } from './problems.ts';
import type { StoreAccess } from './store-access.ts';

/** What src/worker/publish does; handed in so that tasks can be tested without a store. */
export interface PublishTasks {
  publish: (job: TaskJob) => Promise<Parameters<WorkerQueue['report']>[1]>;
  finalize: (
    job: TaskJob,
    cause: Extract<Task, { kind: 'finalize' }>['cause'],
  ) => Promise<Parameters<WorkerQueue['report']>[1]>;
  cleanup: (job: TaskJob, publishFirst: boolean) => Promise<void>;
}

export interface TaskJob {
  descriptor: JobDescriptor;
  layout: ReturnType<typeof jobLayout>;
  stores: JobStores;
  signal: AbortSignal;
}

export interface TaskDependencies {
  queue: Pick<WorkerQueue, 'job' | 'onJobChange' | 'report'>;
  access: Pick<StoreAccess, 'once'>;
  index: IndexDependencies;
  publishing: PublishTasks;
  /** This worker stops: an index pass, which may take hours, is left to another one at once; short tasks end. */
  draining: AbortSignal;
  clock: Clock;
  logger: Logger;
  failPoint: FailPoint;
}

/** Rejects for what waiting can help, so that the queue tries again with back-off. */
export async function runTask(deps: TaskDependencies, task: Task, signal: AbortSignal): Promise<void> {
  const descriptor = await deps.queue.job(task.uid);
  // Lost or removed: the operator asks again if it still wants this.
  if (descriptor === undefined) return;
  const logger = deps.logger.child({
    job: task.uid,
    namespace: descriptor.namespace,
    name: descriptor.name,
    task: task.kind,
  });
  const stop = new AbortController();
  /** The entry stays in the queue, for whoever takes it next. */
  const leaving = task.kind === 'index' ? AbortSignal.any([signal, deps.draining]) : signal;
  const onStop = (): void => stop.abort(leaving.reason);
  leaving.addEventListener('abort', onStop, { once: true });
  if (leaving.aborted) onStop();
  const unsubscribe = deps.queue.onJobChange(task.uid, (changed) => {
    if (changed !== undefined && isObsolete(task, changed))
      stop.abort(new Error(`the job is to ${changed.run}`));
  });
  try {
    if (isObsolete(task, descriptor)) return;
    await deps.failPoint(`worker.${task.kind}.taken`);
    const report = await deps.access.once(descriptor, (stores) =>
      perform(deps, task, {
        descriptor,
        layout: jobLayout(descriptor.output.prefix, descriptor.uid),
        stores,
        signal: stop.signal,
      }),
    );
    await deps.failPoint(`worker.${task.kind}.performed`);
    await deps.queue.report(task.uid, report);
    await deps.failPoint(`worker.${task.kind}.reported`);
  } catch (error) {
    // No problem of the job: this worker, or its hold on the entry, is over.
    if (leaving.aborted) throw error;
    if (stop.signal.aborted) return;
    const { reason, message, retryable } = problemOf(error);
    logger.warn('task not done', { reason, retryable, error });
    await deps.queue.report(task.uid, {
      problem: { task: task.kind, reason, message, retryable, at: deps.clock.now() },
    });
    if (retryable) throw error;
  } finally {
    unsubscribe();
    leaving.removeEventListener('abort', onStop);
  }
}

async function perform(
  deps: TaskDependencies,
  task: Task,
  job: TaskJob,
): Promise<Parameters<WorkerQueue['report']>[1]> {
  switch (task.kind) {
    case 'index':
      return indexJob(deps.index, job.descriptor, job.stores, job.signal);
    case 'publish':
      return deps.publishing.publish(job);
    case 'finalize':
      return deps.publishing.finalize(job, task.cause);
    case 'cleanup':
      await deps.publishing.cleanup(job, task.publishFirst);
      return { cleaned: true };
  }
}

/** An index or publish that nobody needs any more, since the job ends otherwise. */
const isObsolete = (task: Task, { run }: JobDescriptor): boolean =>
  (task.kind === 'index' && (run === 'Stop' || run === 'Gone')) ||
  (task.kind !== 'cleanup' && run === 'Gone');
