/**
 * What operator and workers say to each other through Redis. Everything here can be lost at any moment and is
 * rebuilt from Kubernetes and S3 (docs/concepts/where-truth-lives.md):
 *
 * - the leader writes job descriptors, capacity plans and queue entries; every write carries its fencing token;
 * - workers write reports, done bits, live counts, holds and places;
 * - each side is woken by a channel and polls once a second besides, since messages may be lost.
 */
import type { Counts, Endpoint, LineError, OutcomeCounts, RecentError, Usage } from '../batch/model.ts';

/** Grows with every change of leader; Redis refuses writes that carry a lower one. */
export interface Fence {
  transitions: number;
  leaderUID: string;
}

/** `<namespace>.<name>` of a ModelDeployment: names its shard queue, its plan and its holds. */
export type QueueId = string;
export const queueIdOf = (namespace: string, name: string): QueueId => `${namespace}.${name}`;

/** S3 connection as a job names it; Secrets and ConfigMaps are read by the worker. */
export interface ConnectionRef {
  bucket: string;
  region?: string | undefined;
  endpoint?: string | undefined;
  forcePathStyle?: boolean | undefined;
  caBundleRef?: { name: string; key: string } | undefined;
  credentialsSecretRef?: { name: string } | undefined;
}

/** Why the rest of a job will not run; decides code and outcome of the records of unfinished lines. */
export type StopCause =
  | { kind: 'Cancelled' }
  | { kind: 'Expired' }
  /** `reason` is the condition reason, such as `FailureThreshold` or `InputChanged`. */
  | { kind: 'Failed'; reason: string; message: string };

/** What workers must know of a job; written whole by the leader on every change. */
export interface JobDescriptor {
  uid: string;
  namespace: string;
  name: string;
  /** metadata.generation it was made from. */
  generation: number;
  queue: QueueId;
  endpoint: Endpoint;
  input: {
    connection: ConnectionRef;
    keys?: string[] | undefined;
    prefix?: string | undefined;
    compression: 'Auto' | 'None' | 'Gzip' | 'Zstd';
    invalidLines: 'Record' | 'Fail';
  };
  output: { connection: ConnectionRef; prefix: string };
  /** Name sent to the engine, and the names clients may use for it. */
  model: string;
  aliases: string[];
  engine: 'vLLM' | 'OpenAICompatible';
  /** Key `api-key` of this Secret goes into Authorization. */
  authSecretRef?: { namespace: string; name: string } | undefined;
  retry: { maxAttempts: number; initialBackoffSeconds: number; maxBackoffSeconds: number };
  requestTimeoutSeconds: number;
  maxInFlight?: number | undefined;
  /** BullMQ priority, 1 (first) … 2_097_151. */
  priority: number;
  /** Epoch milliseconds at which the completion window ends. */
  deadline: number;
  /**
   * Run: take lines. Suspend: start no new line, finish those in flight, hand shards back.
   * Stop: abort what is in flight within a second, checkpoint, hand shards back (finalize follows).
   * Gone: the object is being deleted: abort, forget.
   */
  run: 'Run' | 'Suspend' | 'Stop' | 'Gone';
}

export type TaskKind = 'index' | 'publish' | 'finalize' | 'cleanup';

/**
 * Single-flight per job and kind (queue id `<kind>-<uid>`); all are idempotent.
 * - index: claims the output prefix, indexes the input, or, where an index exists, surveys what is done; reports `index`.
 * - publish: appends finished shards to the published files; reports `published`.
 * - finalize: gives every unfinished line its record, publishes the rest, writes the manifest; reports `final`.
 * - cleanup: (`publishFirst`: publishes finished shards if that takes under 10 s, then) removes working objects; reports `cleaned`.
 */
export type Task =
  | { kind: 'index'; uid: string }
  | { kind: 'publish'; uid: string }
  | { kind: 'finalize'; uid: string; cause: { kind: 'Complete' } | StopCause }
  | { kind: 'cleanup'; uid: string; publishFirst: boolean };

/** A task that could not be done. `retryable`: waiting can help (the task is tried again with back-off). */
export interface Problem {
  task: TaskKind | 'shard';
  /** Condition reason: CredentialsNotFound, CredentialsInvalid, SecretAccessMissing, AccessDenied, NoSuchBucket, NoSuchKey, OutputExists, InputChanged, InvalidInput, EmptyInput, LimitExceeded, DiskFull, StorageUnavailable, … */
  reason: string;
  message: string;
  retryable: boolean;
  /** Epoch milliseconds. */
  at: number;
}

export interface IndexReport {
  total: number;
  invalid: number;
  shards: number;
  bytes: number;
  firstInvalid: { key: string; line: number; customId: string | null; error: LineError }[];
}

export interface PublishedReport {
  /** Shards [0, shards) are in the published files. */
  shards: number;
  resultsBytes: number;
  errorsBytes: number;
  at: number;
}

export interface FinalReport {
  /** Shards that had no result although the job was thought complete; then nothing was finalised and they run again. */
  missing?: number[];
  counts: Counts;
  usage: Usage;
  recentErrors: RecentError[];
  /** s3:// URIs; absent for a file without records. */
  results?: string | undefined;
  errors?: string | undefined;
  manifest: string;
}

/** Something of the engine keeps work from flowing; expires unless the worker that saw it renews it. */
export interface Hold {
  /** Replica address, `*` for the whole deployment, or `job:<uid>` for one job (a route that the engine lacks). */
  scope: string;
  reason: string;
  message: string;
  since: number;
}

/** All that the leader must know of one job, read in one round trip. */
export interface JobState {
  /** Absent after a loss: the descriptor must be written again and the index surveyed. */
  descriptor: JobDescriptor | undefined;
  index: IndexReport | undefined;
  /** Bit n (most significant first) = shard n has a result. Empty when nothing is done. */
  done: Uint8Array;
  doneShards: number;
  /** Counts of done shards plus the live counts of open ones. */
  counts: OutcomeCounts;
  usage: Usage;
  /** Bytes of done shards, published or not. */
  resultsBytes: number;
  errorsBytes: number;
  recentErrors: RecentError[];
  published: PublishedReport | undefined;
  final: FinalReport | undefined;
  cleaned: boolean;
  problem: Problem | undefined;
  /** Shards that workers hold now, and for how long the oldest of them has been held. */
  openShards: number;
  openForMilliseconds: number;
}

/** A replica as the plan names it. The cap counts requests in flight of all of Tidegate on this address. */
export interface ReplicaPlan {
  address: string;
  cap: number;
}

export interface DeploymentPlan {
  queue: QueueId;
  replicas: ReplicaPlan[];
}

export interface Capacity {
  address: string;
  cap: number;
  /** Places workers hold now, and those of them with a request in flight. */
  granted: number;
  inFlight: number;
}

/** The leader's side. All writes throw FencedOut when a newer leader has written. */
export interface OperatorQueue {
  putJob(descriptor: JobDescriptor, fence: Fence): Promise<void>;
  /** Forgets a job: its state, queue entries and pool. Idempotent. */
  removeJob(uid: string, queue: QueueId | undefined, fence: Fence): Promise<void>;
  readJob(uid: string): Promise<JobState>;
  /** Clears a report after it was acted on, so that the task can be asked for again. */
  clearReport(uid: string, report: 'problem' | 'final' | 'index' | 'cleaned', fence: Fence): Promise<void>;
  /** Marks shards as not done (a final report named them missing). */
  markMissing(uid: string, shards: number[], fence: Fence): Promise<void>;
  /** Adds the task unless one of this kind and job is already waiting or running; `delayMilliseconds` for back-off. */
  queueTask(task: Task, delayMilliseconds?: number): Promise<void>;
  /** Makes sure that these shards are queued; those already queued or open are left alone. */
  feedShards(queue: QueueId, uid: string, shards: readonly number[], priority: number): Promise<void>;
  /** Takes a job's waiting shards out of the queue (open ones are handed back by their workers). */
  withdrawShards(queue: QueueId, uid: string): Promise<void>;
  /** The whole plan of all deployments; valid for `validMilliseconds`. */
  putPlan(plans: readonly DeploymentPlan[], validMilliseconds: number, fence: Fence): Promise<void>;
  readCapacity(addresses: readonly string[]): Promise<Capacity[]>;
  readHolds(queue: QueueId): Promise<Hold[]>;
  liveWorkers(): Promise<number>;
  /** Of the control tasks, and of the shards of these deployments. */
  readDepths(queues: readonly QueueId[]): Promise<QueueDepth[]>;
  /** Whether workers only register the places they hold: Redis came back empty less than one lease time ago. */
  grantsPaused(): Promise<boolean>;
  /** Wakes on every report of a worker; uid, or undefined for changes of holds and workers. */
  onEvent(listener: (uid: string | undefined) => void): () => void;
  /** True while Redis answers. */
  healthy(): boolean;
  close(): Promise<void>;
}

/** How many entries wait, for the metric `tidegate_queue_depth`; those that pause before their next try are counted. */
export interface QueueDepth {
  /** `index`, `tasks`, or `<namespace>.<name>` of a ModelDeployment. */
  queue: string;
  waiting: number;
}

export interface ShardTask {
  uid: string;
  shard: number;
}

/** What a worker adds to a shard that is done; applied once per shard, whoever sends it. */
export interface ShardDone {
  counts: OutcomeCounts;
  usage: Usage;
  resultsBytes: number;
  errorsBytes: number;
  recentErrors: RecentError[];
}

/** Scope of a Hold that concerns one job. */
export const jobHoldScope = (uid: string): string => `job:${uid}`;
/** The job that a hold is about; undefined for holds of a replica or a deployment. */
export const heldJob = ({ scope }: Hold): string | undefined =>
  scope.startsWith('job:') ? scope.slice('job:'.length) : undefined;

/** The worker's side. */
export interface WorkerQueue {
  readonly workerId: string;
  /** Cached; refreshed by channel and poll. undefined: unknown or lost. */
  job(uid: string): Promise<JobDescriptor | undefined>;
  onJobChange(uid: string, listener: (descriptor: JobDescriptor | undefined) => void): () => void;
  /** Deployments in the current plan. */
  plan(queue: QueueId): DeploymentPlan | undefined;
  /** Addresses of all replicas of the last plan seen. undefined: none was ever seen. */
  replicas(): ReadonlySet<string> | undefined;
  /** Starts taking control tasks. The handler's rejection is retried with back-off by the queue. */
  serveTasks(handler: (task: Task, signal: AbortSignal) => Promise<void>, concurrency: number): void;
  /** Starts taking shards of every deployment in the plan, at most `hands` open at a time each. Resolving frees the entry. */
  serveShards(handler: (task: ShardTask, signal: AbortSignal) => Promise<void>, hands: number): void;
  /** Sets the done bit and adds the counts once; a second report of the same shard changes nothing. */
  shardDone(uid: string, shard: number, done: ShardDone): Promise<void>;
  isShardDone(uid: string, shard: number): Promise<boolean>;
  /** Live counts of an open shard: absolute, replaced at each call. */
  shardProgress(uid: string, shard: number, counts: OutcomeCounts, usage: Usage): void;
  report(
    uid: string,
    report:
      | { index: IndexReport; doneShards: { shard: number; done: ShardDone }[] }
      | { published: PublishedReport }
      | { final: FinalReport }
      | { cleaned: true }
      | { problem: Problem },
  ): Promise<void>;
  putHold(queue: QueueId, hold: Hold, validMilliseconds: number): Promise<void>;
  clearHold(queue: QueueId, scope: string): Promise<void>;
  holds(queue: QueueId): readonly Hold[];
  places: Places;
  healthy(): boolean;
  /** Stops taking work, waits for handlers until the deadline, then closes. */
  close(graceMilliseconds: number): Promise<void>;
}

/** Pools of places: one per engine address, one per job with maxInFlight. */
export type PoolId = { address: string } | { job: string };

/**
 * A worker's share of global pools. `take` is synchronous and local: the share is negotiated in the background
 * by one Redis script per second and pool, and at once when a want cannot be met.
 */
export interface Places {
  /** One place in each of the pools, all or none. undefined: none free now. */
  take(pools: readonly PoolId[]): Place | undefined;
  /** Free places of this worker in the pool right now. */
  free(pool: PoolId): number;
  /** How many places this worker could use in the pool; drives negotiation. */
  setWant(pool: PoolId, want: number): void;
  /** Called whenever places may have become free. */
  onFree(listener: () => void): () => void;
}

export interface Place {
  /** Aborts when the place's validity ran out (frozen process, Redis gone too long, pool withdrawn): the request must end. */
  readonly signal: AbortSignal;
  release(): void;
}

export class FencedOut extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'FencedOut';
  }
}
