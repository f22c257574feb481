/** Builders of objects and snapshots for tests: everything has a sensible value, tests say what matters to them. */
import { API_VERSION, FINALIZER } from '../../api/group.ts';
import type {
  InferenceBatchJob,
  InferenceBatchJobSpec,
  InferenceBatchJobStatus,
} from '../../api/inference-batch-job.ts';
import type { ModelDeployment, ModelDeploymentSpec } from '../../api/model-deployment.ts';
import { noOutcomes, noUsage, type OutcomeCounts } from '../../batch/model.ts';
import type { FinalReport, IndexReport, JobState, Problem } from '../../queue/contract.ts';
import { descriptorOf } from '../inference-batch-job/descriptor.ts';
import { EMPTY_MEMORY, type JobSnapshot } from '../inference-batch-job/snapshot.ts';
import type { Availability } from '../model-deployment/availability.ts';
import { defaultOperatorSettings } from '../settings.ts';

export const CREATED = Date.parse('2026-11-30T12:00:00Z');
/** A minute into the job's life. */
export const NOW = CREATED + 60_000;
export const settings = defaultOperatorSettings.job;

export function jobOf(
  change: {
    spec?: Partial<InferenceBatchJobSpec>;
    metadata?: Partial<InferenceBatchJob['metadata']>;
    status?: InferenceBatchJobStatus | undefined;
  } = {},
): InferenceBatchJob {
  return {
    apiVersion: API_VERSION,
    kind: 'InferenceBatchJob',
    metadata: {
      name: 'claims',
      namespace: 'team',
      uid: 'uid-1',
      resourceVersion: '10',
      generation: 1,
      creationTimestamp: new Date(CREATED).toISOString(),
      finalizers: [FINALIZER],
      ...change.metadata,
    },
    spec: {
      modelRef: { name: 'llama' },
      endpoint: '/v1/chat/completions',
      input: {
        s3: { bucket: 'in', keys: ['a.jsonl'] },
        compression: 'Auto',
        invalidLines: 'Record',
      },
      output: { s3: { bucket: 'out', prefix: 'x/' } },
      completionWindowSeconds: 86_400,
      retry: { maxAttempts: 5, initialBackoffSeconds: 1, maxBackoffSeconds: 60 },
      failurePolicy: { maxFailedPercent: 100 },
      requestTimeoutSeconds: 600,
      suspend: false,
      cancel: false,
      ...change.spec,
    },
    ...(change.status === undefined ? {} : { status: change.status }),
  };
}

export function deploymentOf(spec: Partial<ModelDeploymentSpec> = {}, namespace = 'team'): ModelDeployment {
  return {
    apiVersion: API_VERSION,
    kind: 'ModelDeployment',
    metadata: { name: 'llama', namespace, uid: 'uid-m', resourceVersion: '5', generation: 1 },
    spec: {
      model: 'meta/llama',
      allowedNamespaces: 'Same',
      engine: 'vLLM',
      target: { urls: ['http://engine:8000'] },
      headroom: { maxAsyncInFlightPerReplica: 64 },
      ...spec,
    },
  };
}

export const indexReport = (change: Partial<IndexReport> = {}): IndexReport => ({
  total: 1_000,
  invalid: 0,
  shards: 4,
  bytes: 4_000_000,
  firstInvalid: [],
  ...change,
});

export const counts = (change: Partial<OutcomeCounts> = {}): OutcomeCounts => ({
  ...noOutcomes(),
  ...change,
});

/** Redis as it is when it knows nothing of the job. */
export const emptyQueue = (change: Partial<JobState> = {}): JobState => ({
  descriptor: undefined,
  index: undefined,
  done: new Uint8Array(0),
  doneShards: 0,
  counts: noOutcomes(),
  usage: noUsage(),
  resultsBytes: 0,
  errorsBytes: 0,
  recentErrors: [],
  published: undefined,
  final: undefined,
  cleaned: false,
  problem: undefined,
  openShards: 0,
  openForMilliseconds: 0,
  ...change,
});

/** The descriptor that the operator would have written for this job. */
export const knownDescriptor = (job: InferenceBatchJob, run: 'Run' | 'Suspend' | 'Stop' | 'Gone' = 'Run') =>
  descriptorOf(job, deploymentOf(), undefined, run, settings.priority);

export const problemOf = (change: Partial<Problem>): Problem => ({
  task: 'index',
  reason: 'CredentialsNotFound',
  message: 'Secret s3 does not exist in namespace team',
  retryable: true,
  at: NOW,
  ...change,
});

export const finalReport = (change: Partial<FinalReport> = {}): FinalReport => ({
  counts: { total: 1_000, completed: 990, failed: 10, expired: 0, cancelled: 0 },
  usage: { inputTokens: 5_000, cachedInputTokens: 100, outputTokens: 9_000 },
  recentErrors: [],
  results: 's3://out/x/results.jsonl',
  errors: 's3://out/x/errors.jsonl',
  manifest: 's3://out/x/manifest.json',
  ...change,
});

export const open: Availability = {
  replicas: 2,
  readyReplicas: 2,
  limit: 128,
  inFlight: 10,
  blocked: undefined,
};

export function snapshotOf(change: Partial<JobSnapshot> = {}): JobSnapshot {
  const job = change.job ?? jobOf();
  return {
    job,
    deployment: deploymentOf(),
    namespaceLabels: {},
    availability: open,
    liveWorkers: 2,
    grantsPaused: false,
    fedJobs: 1,
    queue: emptyQueue(),
    memory: EMPTY_MEMORY,
    random: 0.5,
    ...change,
  };
}
