/** Reads all that `decide` needs, into plain data. Nothing is written here. */
import type { InferenceBatchJob } from '../../api/inference-batch-job.ts';
import type { ModelDeployment } from '../../api/model-deployment.ts';
import { keyOf, type KubeObject, type Store } from '../../kube/contract.ts';
import type { JobState, OperatorQueue } from '../../queue/contract.ts';
import type { Logger } from '../../observability/contract.ts';
import type { Availability } from '../model-deployment/availability.ts';
import type { DeploymentBoard } from '../model-deployment/board.ts';
import { modelRefOf } from './accept.ts';
import { hasFinalizer } from './context.ts';
import { hasEnded } from './life.ts';
import type { JobMemory, JobSnapshot } from './snapshot.ts';

export interface JobSources {
  deployments: Store<ModelDeployment>;
  namespaces: Store<KubeObject>;
  board: Pick<DeploymentBoard, 'availability' | 'jobHold' | 'liveWorkers' | 'grantsPaused'>;
  queue: Pick<OperatorQueue, 'readJob'>;
  logger: Logger;
  random: () => number;
}

export async function gather(
  sources: JobSources,
  job: InferenceBatchJob,
  memory: JobMemory,
  fedJobs: number,
): Promise<JobSnapshot> {
  const { namespace, name } = modelRefOf(job);
  const deployment = sources.deployments.get(`${namespace}/${name}`);
  const involved = needsQueue(job);
  return {
    job,
    deployment,
    namespaceLabels: sources.namespaces.get(job.metadata.namespace ?? '')?.metadata.labels ?? {},
    availability:
      deployment === undefined || !involved ? undefined : availabilityFor(sources, deployment, job),
    liveWorkers: sources.board.liveWorkers,
    grantsPaused: sources.board.grantsPaused,
    fedJobs,
    queue: involved ? await readJob(sources, job) : undefined,
    memory,
    random: sources.random(),
  };
}

/** What the deployment can take of this job: nothing while a hold is on the job itself, such as a missing route. */
function availabilityFor(
  { board }: JobSources,
  deployment: ModelDeployment,
  job: InferenceBatchJob,
): Availability | undefined {
  const availability = board.availability(keyOf(deployment));
  const hold = board.jobHold(job.metadata.uid ?? '');
  if (availability === undefined || hold === undefined) return availability;
  const { reason, message } = hold;
  return { ...availability, blocked: availability.blocked ?? { reason, message } };
}

/** A finished job that is cleaned up has nothing in Redis, and there may be ten thousand of them. */
export function needsQueue(job: InferenceBatchJob): boolean {
  const over = hasEnded(job.status) || job.metadata.deletionTimestamp !== undefined;
  return !over || hasFinalizer(job);
}

/** undefined while Redis does not answer: `decide` knows what to do then. */
async function readJob(sources: JobSources, job: InferenceBatchJob): Promise<JobState | undefined> {
  try {
    return await sources.queue.readJob(job.metadata.uid ?? '');
  } catch (error) {
    sources.logger.debug('job not read from Redis', { job: job.metadata.uid, error });
    return undefined;
  }
}
