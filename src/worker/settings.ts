/** Everything about a worker that an operator of Tidegate may tune, and tests shorten. */
export interface WorkerSettings {
  /** Shards open at a time, per model deployment. */
  hands: number;
  /** Control tasks (index, publish, finalize, cleanup) run at a time. */
  taskConcurrency: number;
  /** Input of open shards and answers not yet in S3, together. One larger item runs alone. */
  maxBufferedBytes: number;
  checkpointIntervalMilliseconds: number;
  checkpointBytes: number;
  /** A shard for which no line could be started this long is handed back. */
  idleHandBackMilliseconds: number;
  /** First pause after 429 or 503 without Retry-After; doubles up to `maxBusyMilliseconds`. */
  initialBusyMilliseconds: number;
  maxBusyMilliseconds: number;
  /** A held replica or job is asked again after this; doubles up to `maxProbeMilliseconds`. */
  initialProbeMilliseconds: number;
  maxProbeMilliseconds: number;
  /** A hold that its worker no longer renews is forgotten after this. */
  holdValidMilliseconds: number;
  /** How often connections to replicas that left the plan are let go. */
  retainMilliseconds: number;
  /** Secrets are read again when their copy is older. */
  credentialsMaxAgeMilliseconds: number;
  /** First pause before a store call that failed is tried again; doubles up to `maxStoreRetryMilliseconds`. */
  initialStoreRetryMilliseconds: number;
  maxStoreRetryMilliseconds: number;
  /** How long a stopping worker lets requests finish before it aborts them. */
  graceMilliseconds: number;
  /** Namespaces whose jobs may use the worker's own S3 identity; never together with a custom endpoint. */
  identityNamespaces: string[];
  /** Where the duplicate check spills; a sized emptyDir in the cluster. */
  spillDirectory: string;
  /** What one index task may use there; all that run at a time must fit into the emptyDir. */
  maxSpillBytes: number;
  maxUnpackedBytes: number;
  maxUnpackRatio: number;
}

const MiB = 1024 * 1024;

export const defaultWorkerSettings = (spillDirectory: string): WorkerSettings => ({
  hands: 32,
  taskConcurrency: 4,
  maxBufferedBytes: 128 * MiB,
  checkpointIntervalMilliseconds: 5_000,
  checkpointBytes: 4 * MiB,
  idleHandBackMilliseconds: 5_000,
  initialBusyMilliseconds: 1_000,
  maxBusyMilliseconds: 30_000,
  initialProbeMilliseconds: 1_000,
  maxProbeMilliseconds: 30_000,
  holdValidMilliseconds: 15_000,
  retainMilliseconds: 10_000,
  credentialsMaxAgeMilliseconds: 60_000,
  initialStoreRetryMilliseconds: 500,
  maxStoreRetryMilliseconds: 15_000,
  graceMilliseconds: 25_000,
  identityNamespaces: [],
  spillDirectory,
  maxSpillBytes: 1024 * MiB,
  maxUnpackedBytes: 1024 * 1024 * MiB,
  maxUnpackRatio: 200,
});
