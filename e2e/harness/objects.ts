/** Builders for the objects that tests apply. */
import type { StackDescription } from '../../hack/stack/description.ts';
import type { JobObject, JobStatus } from '../checker/check.ts';
import { TEST_MODEL } from './input.ts';

export const API_VERSION = 'tidegate.dev/v1alpha1';
export const DEPLOYMENT = 'model';

export interface Manifest {
  apiVersion: string;
  kind: string;
  metadata: { name: string; namespace: string };
  spec: Record<string, unknown>;
}

export function modelDeployment(
  namespace: string,
  urls: readonly string[],
  spec: Record<string, unknown> = {},
): Manifest {
  return {
    apiVersion: API_VERSION,
    kind: 'ModelDeployment',
    metadata: { name: DEPLOYMENT, namespace },
    spec: { model: TEST_MODEL, aliases: ['test-alias'], target: { urls }, ...spec },
  };
}

export interface JobOptions {
  name: string;
  namespace: string;
  keys: readonly string[];
  outputPrefix: string;
  /** Merged into the spec. */
  spec?: Record<string, unknown>;
}

export function batchJob(stack: StackDescription, options: JobOptions): Manifest {
  const { s3 } = stack;
  return {
    apiVersion: API_VERSION,
    kind: 'InferenceBatchJob',
    metadata: { name: options.name, namespace: options.namespace },
    spec: {
      modelRef: { name: DEPLOYMENT },
      endpoint: '/v1/chat/completions',
      input: {
        s3: {
          bucket: s3.bucket,
          keys: options.keys,
          region: s3.region,
          endpoint: s3.endpoint,
          forcePathStyle: true,
          credentialsSecretRef: { name: stack.credentialsSecret },
        },
      },
      output: { s3: { bucket: s3.bucket, prefix: options.outputPrefix } },
      ...options.spec,
    },
  };
}

/** An InferenceBatchJob as the API server returns it. */
export interface LiveJob extends JobObject {
  metadata: JobObject['metadata'] & {
    uid: string;
    namespace: string;
    generation: number;
    deletionTimestamp?: string;
    finalizers?: string[];
  };
  spec: JobObject['spec'] & { output: { s3: { prefix: string } } };
  status?: JobStatus & { observedGeneration?: number; message?: string };
}

export const conditionOf = (job: LiveJob | undefined, type: string) =>
  job?.status?.conditions?.find((condition) => condition.type === type);

export const isTrue = (job: LiveJob | undefined, type: string): boolean =>
  conditionOf(job, type)?.status === 'True';

export const hasEnded = (job: LiveJob | undefined): boolean =>
  isTrue(job, 'Complete') || isTrue(job, 'Failed');

/** Lines that have a record or are counted as having one soon. */
export function endedLines(job: LiveJob | undefined): number {
  const counts = job?.status?.counts;
  return counts === undefined ? 0 : counts.completed + counts.failed + counts.expired + counts.cancelled;
}
